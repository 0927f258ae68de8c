"""Kueue's public performance configurations on our planner, in virtual time: same arrivals, quotas and cohorts, 1 CPU = 1 node.

    python benchmarks/kueue.py FOLDER/baseline-generator.yaml [--tick 50]

This times the planner and the order of starts. It is no measurement of a control plane: nothing is sent to anybody, and a start costs
nothing. Kueue's own figures (351 s for the 15,000 of `baseline`, 1,179 s for the 50,000 of `large-scale`) pay for an API server.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from phalanx.model.fleet import Node
from phalanx.model.plan import Ask, Policy, Quota
from phalanx.scheduler.simulation.measure import at
from phalanx.scheduler.simulation.run import exact, simulate
from phalanx.scheduler.simulation.trace import Job


@dataclass(frozen=True)
class Workload:
    """A kind of workload: how many in a queue, how often, how long, of what priority and size."""

    name: str
    count: int
    every_ms: int
    runtime_ms: int
    priority: int
    request: int


@dataclass(frozen=True)
class Generator:
    """The part of a generator file that says something about load."""

    cohorts: int
    queues: int
    quota: int
    borrowing: int
    workloads: tuple[Workload, ...]

    @property
    def nodes(self) -> int:
        """All quotas together: as many nodes as could ever be used."""
        return self.cohorts * self.queues * self.quota

    def jobs(self) -> list[Job]:
        """Every workload of every queue, in order of arrival."""
        found = []
        for cohort in range(self.cohorts):
            for queue in range(self.queues):
                name = f"cohort-{cohort}/cq-{queue:03}"
                for kind in self.workloads:
                    for i in range(kind.count):
                        found.append((i * kind.every_ms, name, kind))
        found.sort(key=lambda entry: (entry[0], entry[1], entry[2].name))
        return [Job(i, at_ms, k.request, k.runtime_ms, name, k.name, k.name, k.priority) for i, (at_ms, name, k) in enumerate(found)]

    def quotas(self) -> tuple[Quota, ...]:
        """Nominal quota and borrowing limit of every queue."""
        names = [(c, q) for c in range(self.cohorts) for q in range(self.queues)]
        return tuple(Quota(f"cohort-{c}/cq-{q:03}", self.quota, f"cohort-{c}", self.borrowing) for c, q in names)


def read_generator(path: Path) -> Generator:
    """Read the few fields there are. The files have one cohort class with one queue class; a value stands behind each name."""
    pairs = []
    for line in path.read_text().splitlines():
        key, colon, value = line.split("#")[0].strip().removeprefix("- ").partition(":")
        if colon and value.strip():
            pairs.append((key.strip(), value.strip()))
    counts = [int(v) for k, v in pairs if k == "count"]
    values = {k: [v for key, v in pairs if key == k] for k, _ in pairs}
    names = [name for name in values["className"] if name not in ("cohort", "cq")]
    columns = (values[key] for key in ("creationIntervalMs", "runtimeMs", "priority", "request"))
    kinds = zip(names, counts[2:], *columns, strict=True)
    workloads = tuple(Workload(n, count, int(e), int(r), int(p), int(q)) for n, count, e, r, p, q in kinds)
    return Generator(counts[0], counts[1], int(values["nominalQuota"][0]), int(values["borrowingLimit"][0]), workloads)


def main() -> None:
    """Run one generator file and print what Kueue's own CI prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("generator", type=Path)
    parser.add_argument("--tick", type=int, default=50, help="plan at most every so many ms")
    options = parser.parse_args()
    generator = read_generator(options.generator)
    jobs = generator.jobs()
    nodes = [Node(f"node-{i:05}", cpu_milli=1000, memory_mib=1000, network="cluster") for i in range(generator.nodes)]
    began = time.process_time()
    outcome = simulate(
        jobs, nodes, Policy(forecasts=0), exact, clock=time.thread_time, quotas=generator.quotas(), ask=Ask(cpu_milli=1000),
        every_ms=options.tick,
    )  # fmt: skip
    ends = [s.job.submit_ms + s.wait_ms + s.job.duration_ms for s in outcome.jobs]
    work = sum(job.nodes * job.duration_ms for job in jobs)
    print(f"{options.generator.name}: {len(jobs)} workloads, {len(nodes)} nodes, a plan every {options.tick} ms")
    usage = 100 * work / len(nodes) / max(ends)
    print(f"all done after {max(ends) / 1000:.1f} s of virtual time, usage {usage:.1f} %, {outcome.evictions} evictions")
    for kind in sorted(generator.workloads, key=lambda k: -k.request):
        waits = [s.wait_ms / 1000 for s in outcome.jobs if s.job.function == kind.name]
        print(f"  {kind.name}: mean wait {sum(waits) / len(waits):.1f} s")
    plans = sorted(outcome.plan_s)
    print(f"plans: {len(plans)}, CPU {sum(plans):.1f} s, p50 {1000 * at(plans, 0.5):.1f} ms, p99 {1000 * at(plans, 0.99):.1f} ms; "
          f"whole run {time.process_time() - began:.0f} s of CPU")  # fmt: skip


if __name__ == "__main__":
    main()
