"""The gang planner against FIFO, skip-ahead and EASY backfill: same traces, same seeds, same fleet, one run. See docs/scheduling.md.

    python benchmarks/scheduler.py --traces DIR [--seeds 6] [--only main,estimates,functions,…] [--jobs 2] [--json OUT]

Everything is run through the very same `plan()`; a policy is a setting of it. Exit code 1 when a floor is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from scheduler_tick import measure

from phalanx.model.fleet import Node
from phalanx.model.plan import Policy
from phalanx.scheduler.simulation.alike import alike, explained, spread_of
from phalanx.scheduler.simulation.faults import FaultModel
from phalanx.scheduler.simulation.measure import LARGE, Figures, figures, fluid_bound
from phalanx.scheduler.simulation.run import either_way, exact, simulate, too_long
from phalanx.scheduler.simulation.topology import read_topology, uniform
from phalanx.scheduler.simulation.trace import Job, another, at_load, read_trace

POLICIES = {
    "phalanx": Policy(forecasts=0),
    "easy": Policy(order="fifo", soft_claims=0, forecasts=0),
    "skip-ahead": Policy(order="fifo", backfill="skip", forecasts=0),
    "fifo": Policy(order="fifo", backfill="none", forecasts=0),
    "wfp3": Policy(order="wfp3", soft_claims=0, forecasts=0),
    "sjf": Policy(order="sjf", soft_claims=0, forecasts=0),
}
ACME = ("acme_kalos_calibrated.csv.gz", "acme_kalos_calibrated_s12.csv.gz")
HOUR_MS = 3_600_000


def main() -> int:
    """Run the chosen sections and print their tables."""
    options = _options()
    runner = _Runner(options.traces, options.jobs)
    missed: list[str] = []
    results: dict[str, object] = {"cores": os.cpu_count(), "python": sys.version.split()[0], "seeds": options.seeds}
    for name in options.only.split(","):
        section = SECTIONS.get(name)
        if section is None:
            raise SystemExit(f"--only {name}: no such section; there are {', '.join(SECTIONS)}")
        began = time.monotonic()
        results[name] = section(runner, options, missed)
        print(f"({name}: {time.monotonic() - began:.0f} s)\n", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    for line in missed:
        print("MISSED:", line)
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    here = Path(__file__).resolve().parent.parent
    default = os.environ.get("PHALANX_TRACES") or str(here.parent / "shared" / "traces")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, default=Path(default), help="folder of the traces; PHALANX_TRACES; ../shared/traces")
    parser.add_argument("--seeds", type=int, default=6, help="traces a table: the two files as they are, then drawn ones")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", default="main,estimates,functions,others,faults,curve,tick")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--ticks", type=int, default=1000, help="ticks of the speed table; a tenth of it at 100,000 nodes")
    parser.add_argument("--json", help="write all figures here")
    options = parser.parse_args()
    if not (options.traces / ACME[0]).exists():
        raise SystemExit(f"{options.traces} has no {ACME[0]}: give the folder of the traces with --traces")
    return options


# One run, described by plain values so that it can be sent to another process. "acme~0.7": functions' runs differ by e^0.7 (alike.py).
Run = tuple[str, str, float, int, str, str, float, bool]      # trace, fleet, load, seed, policy, estimates, faults, rack failure


class _Runner:
    def __init__(self, traces: Path, jobs: int) -> None:
        self.traces = traces
        self.pool = ProcessPoolExecutor(jobs) if jobs > 1 else None

    def all(self, runs: list[Run]) -> list[Figures]:
        work = [(self.traces, run) for run in runs]
        return list(self.pool.map(_one, work)) if self.pool else [_one(item) for item in work]


def _one(item: tuple[Path, Run]) -> Figures:
    traces, (trace, fleet, load, seed, policy, estimates, faults, rack) = item
    nodes = _fleet(traces, fleet)
    jobs = _jobs(traces, trace, nodes, load, seed)
    name, _, factor = policy.partition("@")
    setting = replace(POLICIES[name], age_factor=int(factor)) if factor else POLICIES[name]
    known = {"exact": exact, "too-long": too_long(seed), "either-way": either_way(seed), "none": None, "history": None}[estimates]
    model = None
    if faults or rack:
        model = FaultModel(faults, rack_at_ms=jobs[-1].submit_ms // 2 if rack else None, seed=seed + 1)
    history = _jobs(traces, trace, nodes, load, seed, again=1) if estimates == "history" else ()
    outcome = simulate(jobs, nodes, setting, known, model, time.thread_time, history=history)
    return figures(outcome, len(nodes), fluid_bound(jobs, len(nodes)))


def _fleet(traces: Path, name: str) -> tuple[Node, ...]:
    if name == "lingjun":
        return read_topology(traces / "topo_lingjun847.csv")
    fabrics, nodes = name.split("x")
    return uniform(int(fabrics), int(nodes))


def _jobs(traces: Path, trace: str, nodes: tuple[Node, ...], load: float, seed: int, again: int = 0) -> list[Job]:
    trace, _, spread = trace.partition("~")
    if trace == "acme":
        jobs = read_trace(traces / ACME[seed % 2])
        jobs = jobs if seed < 2 else another(jobs, seed)
    else:
        jobs = read_trace(traces / f"{trace}.csv.gz")
        jobs = jobs if seed == 0 else another(jobs, seed)
    largest = max(sum(1 for n in nodes if n.network == network) for network in {n.network for n in nodes})
    return at_load(alike(jobs, float(spread), seed, again) if spread else jobs, len(nodes), load, min(128, largest))


def _table(
    runner: _Runner, title: str, trace: str, fleet: str, load: float, seeds: range, policies: list[str], estimates: str = "exact"
) -> dict[str, dict[str, float]]:
    """Run and print one table; every figure with /EASY is the ratio to EASY-1 with exact lengths on the same trace and seed."""
    base = runner.all([(trace, fleet, load, seed, "easy", "exact", 0.0, False) for seed in seeds])
    print(f"## {title}: load {load}, {len(seeds)} traces, lengths {estimates}; bound {_mean([f.bound for f in base]):.3f}")
    print(f"{'policy':14} {'mean/EASY':>20} {'large p99/EASY':>22} {'longest/EASY':>22} {'of bound':>14} {'mean h':>7} {'racks x':>8} "
          f"{'promises':>9} {'broken':>7} {'cross':>6} {'plan p50/p99 ms':>16}")  # fmt: skip
    out = {}
    for policy in policies:
        runs = base
        if (policy, estimates) != ("easy", "exact"):
            runs = runner.all([(trace, fleet, load, seed, policy, estimates, 0.0, False) for seed in seeds])
        row = summary(runs, base)
        out[policy] = row
        print(
            f"{policy:14} {_spread(row, 'mean'):>20} {_spread(row, 'large_p99'):>22} {_spread(row, 'longest'):>22} "
            f"{row['of_bound']:>7.3f} >{row['of_bound_min']:.3f} {row['mean_h']:>7.2f} {row['racks']:>8.2f} {row['promises']:>9.0f} "
            f"{row['broken']:>7.0f} {row['cross']:>6.0f} {row['plan_p50']:>8.2f} /{row['plan_p99']:>5.1f}", flush=True,
        )  # fmt: skip
    return out


def summary(runs: list[Figures], base: list[Figures]) -> dict[str, float]:
    """Ratios per seed with their mean and range; `longest_worst` is the worst wait of all seeds over EASY's worst."""
    pairs = list(zip(runs, base, strict=True))
    ratios = {
        "mean": [r.mean_h / b.mean_h for r, b in pairs],
        "large_p99": [r.large_p99_h / b.large_p99_h if b.large_p99_h else 1.0 for r, b in pairs],
        "longest": [r.max_h / b.max_h for r, b in pairs],
    }
    row = {}
    for name, values in ratios.items():
        row |= {name: _mean(values), f"{name}_min": min(values), f"{name}_max": max(values)}
    row["longest_worst"] = max(r.max_h for r in runs) / max(b.max_h for b in base)
    means = {"of_bound": "of_bound", "mean_h": "mean_h", "racks": "racks_over_fewest", "plan_p50": "plan_ms_p50"}
    sums = {"promises": "promises", "broken": "broken", "cross": "cross_fabric", "partial": "partial"}
    row |= {name: _mean([getattr(r, field) for r in runs]) for name, field in means.items()}
    row |= {name: sum(getattr(r, field) for r in runs) for name, field in sums.items()}
    row["of_bound_min"] = min(r.of_bound for r in runs)
    row["plan_p99"] = max(r.plan_ms_p99 for r in runs)
    return row


def _main(runner: _Runner, options: argparse.Namespace, missed: list[str]) -> object:
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    out = {}
    for load in (0.95, 0.9):
        rows = _table(runner, "Acme-Kalos-calibrated on Lingjun-847", "acme", "lingjun", load, seeds, list(POLICIES))
        out[str(load)] = rows
        ours = rows["phalanx"]
        _floor(missed, f"mean wait / EASY at {load}", ours["mean"], 0.75)
        _floor(missed, f"large p99 / EASY at {load}", ours["large_p99"], 1.0)
        _floor(missed, f"longest wait / EASY at {load}", ours["longest_worst"], 1.25)
        _floor(missed, f"utilisation of the bound at {load}", -ours["of_bound"], -0.96)
        for name in ("broken", "cross", "partial"):
            _floor(missed, f"{name} at {load}", ours[name], 0)
    return out


def _estimates(runner: _Runner, options: argparse.Namespace, missed: list[str]) -> object:
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    out = {}
    for known in ("too-long", "either-way", "none"):
        title = "the same, lengths wrong by up to 5x or not given"
        out[known] = _table(runner, title, "acme", "lingjun", 0.95, seeds, ["phalanx", "easy"], known)
    return out


def _functions(runner: _Runner, options: argparse.Namespace, missed: list[str]) -> object:
    """From what likeness of runs on lengths need not be given: the same lengths, dealt so that functions' runs resemble each other."""
    few = range(options.first_seed, options.first_seed + min(options.seeds, 4))
    print(f"## functions whose runs resemble each other: {len(few)} traces; mean, large p99, longest over EASY with exact lengths")
    print(f"{'trace':21} {'lengths':>8} {'spread':>7} {'told':>5} {'of large':>8} {'phalanx':>20} {'EASY':>20} {'mean/exact':>11}")
    out: dict[str, dict[str, object]] = {}
    dealt = [(f"acme~{spread}", "lingjun", 0.95) for spread in (0.25, 0.7, 1.0, 1.4)]
    for trace, fleet, load in (*dealt, ("acme", "lingjun", 0.95), ("kalos_real_completed", "2x160", 0.8), ("philly_fullnode", "4x16", 0.6)):
        nodes = _fleet(options.traces, fleet)
        drawn = [_jobs(options.traces, trace, nodes, load, seed) for seed in few]
        before = [_jobs(options.traces, trace, nodes, load, seed, again=1) for seed in few]
        base = exact_runs = None
        for estimates in ("exact", "none", "history") if "~" in trace else ("exact", "none"):
            plain, ours = (
                runner.all([(trace, fleet, load, seed, policy, estimates, 0.0, False) for seed in few]) for policy in ("easy", "phalanx")
            )
            base, exact_runs = base or plain, exact_runs or ours
            known = before if estimates == "history" else [[] for _ in few]
            row: dict[str, object] = {"phalanx": summary(ours, base), "easy": summary(plain, base)}
            spread = _mean([spread_of(jobs) for jobs in drawn])
            told = told_large = 1.0
            if estimates != "exact":
                told = _mean([explained(jobs, old) for jobs, old in zip(drawn, known, strict=True)])
                told_large = _mean([explained(_large(jobs), _large(old)) for jobs, old in zip(drawn, known, strict=True)])
            over = _mean([ours_run.mean_h / exact_run.mean_h for ours_run, exact_run in zip(ours, exact_runs, strict=True)])
            out[f"{trace} {estimates}"] = row | {"spread": spread, "told": told, "told_large": told_large, "over_exact": over}
            print(f"{trace:21} {estimates:>8} {spread:>7.2f} {told:>5.2f} {told_large:>8.2f} {_three(summary(ours, base)):>20} "
                  f"{_three(summary(plain, base)):>20} {over:>11.2f}", flush=True)  # fmt: skip
    return out


def _large(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if job.nodes >= LARGE]


def _three(row: dict[str, float]) -> str:
    return " ".join(f"{row[name]:.3f}" for name in ("mean", "large_p99", "longest"))


def _others(runner: _Runner, options: argparse.Namespace, missed: list[str]) -> object:
    few = range(options.first_seed, options.first_seed + min(options.seeds, 4))
    wanted = ["phalanx", "easy", "skip-ahead", "wfp3"]
    return {
        "whole fabrics": _table(runner, "Acme-Kalos-calibrated on 7 fabrics of 128", "acme", "7x128", 0.9, few, wanted),
        "kalos": _table(runner, "Kalos, completed jobs, on 2 fabrics of 160", "kalos_real_completed", "2x160", 0.8, few, wanted),
        "seren": _table(runner, "Acme-Seren-calibrated on Lingjun-847", "acme_seren_calibrated", "lingjun", 1.0, few, wanted),
        "philly": _table(runner, "Philly full nodes on 4 fabrics of 16", "philly_fullnode", "4x16", 0.6, few, wanted),
    }


def _faults(runner: _Runner, options: argparse.Namespace, missed: list[str]) -> object:
    seeds = range(options.first_seed, options.first_seed + min(options.seeds, 3))
    print("## faults on Acme-Kalos-calibrated, load 0.9: checkpoints every 30 min, 10 min to restart, 4 h to repair")
    print(f"{'per 1,000 node-days':>20} {'rack':>5} {'mean h':>7} {'longest h':>10} {'work done again':>16} {'partial':>8} {'broken':>7}")
    out = {}
    for rate, rack in ((0.0, False), (2.3, False), (4.0, False), (6.5, False), (21.0, False), (4.0, True)):
        runs = runner.all([("acme", "lingjun", 0.9, seed, "phalanx", "exact", rate, rack) for seed in seeds])
        row = {"mean_h": _mean([r.mean_h for r in runs]), "max_h": max(r.max_h for r in runs), "lost": _mean([r.lost for r in runs]),
               "partial": sum(r.partial for r in runs), "broken": sum(r.broken for r in runs)}  # fmt: skip
        out[f"{rate}{'+rack' if rack else ''}"] = row
        print(f"{rate:>20} {'yes' if rack else 'no':>5} {row['mean_h']:>7.2f} {row['max_h']:>10.1f} {100 * row['lost']:>15.2f}% "
              f"{row['partial']:>8} {row['broken']:>7}", flush=True)  # fmt: skip
        _floor(missed, f"partial gangs at {rate} faults", row["partial"], 0)
    return out


def _curve(runner: _Runner, options: argparse.Namespace, missed: list[str]) -> object:
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    factors = [f"phalanx@{factor}" for factor in (3, 6, 9, 12, 16, 24, 1000)]
    return _table(runner, "the trade-off: age_factor from fair to short", "acme", "lingjun", 0.95, seeds, factors)


def _tick(runner: _Runner, options: argparse.Namespace, missed: list[str]) -> object:
    print(f"## one tick = 100 events into the index + plan(), complete; {os.cpu_count()} cores, wall ms (CPU ms)")
    out = []
    for nodes, gangs, ticks, floor in ((10_000, 100, options.ticks, 20), (100_000, 1000, max(20, options.ticks // 10), 200)):
        times = measure(nodes, gangs, ticks)
        p50, p99, cpu99 = times.at(0.5), times.at(0.99), times.at(0.99, True)
        total = f"{ticks} ticks, {times.starts} starts, {times.evictions} evictions"
        made = f"first build {times.build_ms:.0f} ms; a collection between ticks at most {times.collector_ms:.1f} ms"
        print(f"{nodes:>7} nodes x {gangs:>4} gangs: p50 {p50:.2f} ({times.at(0.5, True):.2f}), p99 {p99:.2f} ({cpu99:.2f}), worst "
              f"{times.at(1.0):.1f}; {total}; {made}",
              flush=True)  # fmt: skip
        numbers = {k: v for k, v in asdict(times).items() if not isinstance(v, list)}
        out.append(numbers | {"p50": p50, "p99": p99, "p99_cpu": cpu99})
        _floor(missed, f"tick p99 at {nodes} nodes", p99, floor)
    return out


def _floor(missed: list[str], what: str, value: float, floor: float) -> None:
    if value > floor:
        missed.append(f"{what}: {abs(value):.3f}, floor {abs(floor):g}")


def _spread(row: dict[str, float], name: str) -> str:
    return f"{row[name]:.3f} [{row[f'{name}_min']:.2f}-{row[f'{name}_max']:.2f}]"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


SECTIONS = {
    "main": _main, "estimates": _estimates, "functions": _functions, "others": _others, "faults": _faults, "curve": _curve, "tick": _tick,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
