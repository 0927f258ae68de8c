"""Prints what was measured, in Markdown: versions, the machine's load, and tables with each row's ratio to the floor."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from peers.floor import Floor
from peers.peer import Peer, Timing
from peers.phalanx import STATELESS, STATELESS_WITH_RANKS
from rounds import Measured

MILLI = 1000.0
SYNCS = 30


def print_machine(folder: Path) -> None:
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    now, sync = time.strftime("%Y-%m-%d %H:%M:%S"), _spread(_syncs(folder / "sync"))
    print(f"{now}: {os.cpu_count()} CPUs, Linux {platform.release()}, load average {load}, fdatasync {sync} ms\n", flush=True)


def print_versions(peers: Sequence[Peer]) -> None:
    for peer in peers:
        print(f"- {peer.name}: {peer.missing() or peer.version()}")
    print(flush=True)


def print_tables(size: int, measured: Measured) -> None:
    floor = measured.launches.get((Floor.name, True), [])
    for runner, title in ((False, "bare ranks"), (True, "every rank imports the runner")):
        base = measured.launches.get((Floor.name, runner), floor)
        rows = {name: timings for (name, imports), timings in measured.launches.items() if imports == runner}
        _print_table(f"{size} ranks, launch, {title}", {"floor": base}, rows, measured)
    bases = {"stateless": measured.warm.get(STATELESS, []), "stateless with ranks": measured.warm.get(STATELESS_WITH_RANKS, [])}
    _print_table(f"{size} ranks, call on what is warm", bases, measured.warm, measured)


def _print_table(title: str, bases: dict[str, list[Timing | None]], rows: dict[str, list[Timing | None]], measured: Measured) -> None:
    """`bases`: a column of ratios for each."""
    print(f"### {title}\n")
    ratios = "".join(f" result ÷ {name} |" for name in bases)
    print(f"| ms | all ranks in user code: median (min–max) | result at the caller: median (min–max) |{ratios} n |")
    print("|---|---:|---:|" + "---:|" * (len(bases) + 1))
    for name, timings in sorted(rows.items(), key=lambda row: _order(row[1])):
        good = [timing for timing in timings if timing]
        if good:
            in_code = _spread([timing.in_code for timing in good if timing.in_code is not None])
            ratios = "".join(f" {_ratio(timings, base)} |" for base in bases.values())
            print(f"| {name} | {in_code} | {_spread([timing.result for timing in good])} |{ratios} {len(good)} |")
    for name, reason in {**measured.missing, **measured.failures}.items():
        if name not in rows or not any(rows[name]):
            print(f"| {name} | {reason.splitlines()[0][:120]} | |{' |' * len(bases)} |")
    print(flush=True)


def _syncs(path: Path) -> list[float]:
    """What one write to the disk of the state folder costs: Phalanx acknowledges nothing before."""
    seconds = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(b"x" * 8192)
            began = time.monotonic()
            os.fdatasync(file.fileno())
            seconds.append(time.monotonic() - began)
    path.unlink()
    return seconds


def _order(timings: list[Timing | None]) -> float:
    good = [timing.result for timing in timings if timing]
    return median(good) if good else float("inf")


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "–"
    digits = 1 if median(seconds) < 0.1 else 0
    low, middle, high = (f"{value * MILLI:.{digits}f}" for value in (min(seconds), median(seconds), max(seconds)))
    return f"{middle} ({low}–{high})"


def _ratio(timings: list[Timing | None], base: list[Timing | None]) -> str:
    """The median over the rounds of this round's ratio: both sides saw the same machine."""
    ratios = [timing.result / floor.result for timing, floor in zip(timings, base, strict=False) if timing and floor]
    return f"{median(ratios):.2f}" if ratios else "–"
