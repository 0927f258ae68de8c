"""Traces of gangs: read, scale to a load, draw another one like it."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

WEEK_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Job:
    """One gang of a trace. `function` is what predictions are made by, `family` its like: the same kind and size."""

    number: int
    submit_ms: int
    nodes: int
    duration_ms: int
    workspace: str = ""
    function: str = ""
    family: str = ""
    priority: int = 0
    timeout_ms: int = 0        # 0: the trace has none


def read_trace(path: Path) -> list[Job]:
    """A CSV file (or .gz) with submit_s,nodes,duration_s,walltime_s,user,prio,kind. Raises ValueError: a missing column, a bad row."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as lines:
        return parse_trace(lines, str(path))


def parse_trace(lines: Iterable[str], name: str = "trace") -> list[Job]:
    """The same from lines."""
    jobs = []
    rows = csv.DictReader(lines)
    missing = {"submit_s", "nodes", "duration_s"} - set(rows.fieldnames or ())
    if missing:
        raise ValueError(f"{name}: column {', '.join(sorted(missing))} is missing; it has {', '.join(rows.fieldnames or ()) or 'none'}")
    for number, row in enumerate(rows):
        user, kind = row.get("user") or "", row.get("kind") or ""
        try:
            jobs.append(Job(
                number, round(float(row["submit_s"]) * 1000), int(row["nodes"]), max(1000, round(float(row["duration_s"]) * 1000)),
                user, f"{user}/{kind}/{row['nodes']}", f"{kind}/{row['nodes']}", int(row.get("prio") or 0),
                round(float(row.get("walltime_s") or 0) * 1000),
            ))  # fmt: skip
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{name}, row {number + 1}: {error}") from error
        if jobs[-1].nodes < 1:
            raise ValueError(f"{name}, row {number + 1}: nodes is {jobs[-1].nodes}, and at least 1 is wanted")
    return sorted(jobs, key=lambda j: (j.submit_ms, j.number))


def at_load(jobs: list[Job], fleet_nodes: int, load: float, largest: int) -> list[Job]:
    """Compress or stretch the arrivals until the work offered in their window is `load` of the fleet. Gangs are cut to `largest`."""
    cut = [replace(job, nodes=min(job.nodes, largest)) for job in jobs]
    first, last = cut[0].submit_ms, cut[-1].submit_ms
    work = sum(job.nodes * job.duration_ms for job in cut)
    factor = work / (fleet_nodes * load) / max(1, last - first)
    return [replace(job, submit_ms=round((job.submit_ms - first) * factor)) for job in cut]


def another(jobs: list[Job], seed: int) -> list[Job]:
    """A trace like this one: its arrivals turned by whole weeks, its jobs drawn anew with replacement. The hour of the week stays."""
    draw = random.Random(seed)
    span = jobs[-1].submit_ms
    turn = draw.randrange(max(1, span // WEEK_MS)) * WEEK_MS
    times = sorted((job.submit_ms + turn) % (span + 1) for job in jobs)
    return [replace(jobs[draw.randrange(len(jobs))], number=i, submit_ms=t) for i, t in enumerate(times)]
