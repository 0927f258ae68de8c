"""`phalanx simulate`: the planner's own `plan()` over a trace of gangs, in virtual time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from phalanx.model.fleet import Node
from phalanx.model.plan import Policy
from phalanx.scheduler.simulation.faults import FaultModel
from phalanx.scheduler.simulation.measure import Figures, figures, fluid_bound
from phalanx.scheduler.simulation.run import Estimate, either_way, exact, simulate, too_long
from phalanx.scheduler.simulation.topology import parse_fleet
from phalanx.scheduler.simulation.trace import Job, another, at_load, read_trace

# The planner as it is, and what people use today. All run through the same plan().
POLICIES = {
    "phalanx": Policy(),
    "easy": Policy(order="fifo", soft_claims=0),
    "skip-ahead": Policy(order="fifo", backfill="skip"),
    "fifo": Policy(order="fifo", backfill="none"),
    "wfp3": Policy(order="wfp3", soft_claims=0),
    "sjf": Policy(order="sjf", soft_claims=0),
}
ESTIMATES = ("exact", "too-long", "either-way", "none")


def estimates(name: str, seed: int) -> Estimate | None:
    """How much the scheduler is told about lengths; None: nothing, it predicts per function."""
    made: dict[str, Callable[[], Estimate | None]] = {
        "exact": lambda: exact, "too-long": lambda: too_long(seed), "either-way": lambda: either_way(seed), "none": lambda: None,
    }  # fmt: skip
    return made[name]()


@click.command("simulate")
@click.option("--trace", "trace_path", required=True, type=click.Path(exists=True, path_type=Path),
              help="CSV or CSV.gz: submit_s,nodes,duration_s and optionally walltime_s,user,prio,kind.")
@click.option("--fleet", required=True, help="A CSV of zone,block,rack,nodes, or FABRICSxNODES[/RACK], as in 7x128 or 3x288/18.")
@click.option("--policy", "policies", multiple=True, type=click.Choice(sorted(POLICIES)), help="Several times; default phalanx.")
@click.option("--load", type=click.FloatRange(0.01, 100), help="Scale the arrivals to this share of the fleet. Default: as recorded.")
@click.option("--seed", type=int, help="Draw another trace like this one.")
@click.option("--estimates", "estimate", type=click.Choice(ESTIMATES), default="exact", show_default=True, help="What is known of lengths.")
@click.option("--faults", type=click.FloatRange(0), default=0.0, help="Failures per 1,000 node-days.")
@click.option("--rack-failure", is_flag=True, help="One rack fails half-way.")
@click.option("--what-if-more", type=click.IntRange(0), default=0, help="So many nodes more, on the largest fabric.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a policy and line.")
def simulate_command(
    trace_path: Path, fleet: str, policies: tuple[str, ...], load: float | None, seed: int | None, estimate: str, faults: float,
    rack_failure: bool, what_if_more: int, as_json: bool,
) -> None:  # fmt: skip
    """Run a trace of gangs through the planner and print waits, utilisation and promises kept."""
    try:
        nodes = _more(parse_fleet(fleet), what_if_more)
        jobs = read_trace(trace_path)
        if not jobs:
            raise click.ClickException(f"{trace_path} has no gangs")
        jobs = _prepare(jobs, nodes, load, seed)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    model = FaultModel(faults, rack_at_ms=jobs[-1].submit_ms // 2 if rack_failure else None) if faults or rack_failure else None
    bound = fluid_bound(jobs, len(nodes))
    results = {}
    for name in policies or ("phalanx",):
        outcome = simulate(jobs, nodes, POLICIES[name], estimates(estimate, seed or 0), model, time.perf_counter)
        results[name] = figures(outcome, len(nodes), bound)
        if as_json:
            click.echo(json.dumps({"policy": name, **asdict(results[name]), "of_bound": results[name].of_bound}))
    if not as_json:
        print_figures(results)


def print_figures(results: dict[str, Figures], console: Console | None = None) -> None:
    """The table for people."""
    table = Table(title="waits in hours", caption="large: 16 nodes and more; of bound: utilisation over what a fluid could reach")
    heads = (
        "policy", "gangs", "mean", "p50", "p95", "p99", "max", "small", "large", "large p99", "util", "of bound", "racks x", "promises",
        "broken", "stopped", "lost", "plan ms p50", "p99",
    )  # fmt: skip
    for head in heads:
        table.add_column(head, justify="left" if head == "policy" else "right")
    for name, f in results.items():
        hours = [f"{h:.2f}" for h in (f.mean_h, f.p50_h, f.p95_h, f.p99_h, f.max_h, f.small_mean_h, f.large_mean_h, f.large_p99_h)]
        shares = [f"{f.utilisation:.3f}", f"{f.of_bound:.3f}", f"{f.racks_over_fewest:.2f}"]
        counts = [str(f.promises), str(f.broken), str(f.evictions), f"{100 * f.lost:.2f}%", f"{f.plan_ms_p50:.2f}", f"{f.plan_ms_p99:.2f}"]
        table.add_row(name, str(f.gangs), *hours, *shares, *counts)
    (console or Console(width=200)).print(table)


def _prepare(jobs: list[Job], nodes: tuple[Node, ...], load: float | None, seed: int | None) -> list[Job]:
    sizes: dict[str, int] = {}
    for node in nodes:
        sizes[node.network] = sizes.get(node.network, 0) + 1
    largest = max(sizes.values())
    drawn = jobs if seed is None else another(jobs, seed)
    too_large = sum(1 for job in drawn if job.nodes > largest)
    if too_large:
        click.echo(f"{too_large} gangs are larger than the largest fabric ({largest} nodes) and are cut to it", err=True)
    if load is None:
        return [replace(job, nodes=min(job.nodes, largest)) for job in drawn]
    return at_load(drawn, len(nodes), load, largest)


def _more(nodes: tuple[Node, ...], count: int) -> tuple[Node, ...]:
    if count <= 0:
        return nodes
    sizes: dict[str, int] = {}
    for node in nodes:
        sizes[node.network] = sizes.get(node.network, 0) + 1
    largest = max(sorted(sizes), key=lambda name: sizes[name])
    like = next(n for n in nodes if n.network == largest)
    return nodes + tuple(replace(like, node_id=f"what-if-{i:04}", rack=f"what-if-{i // 8}", fabric_id="") for i in range(count))
