"""Figures from a run: waits, utilisation beside what a fluid could reach, racks beside the fewest possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.scheduler.simulation.run import Outcome
from phalanx.scheduler.simulation.trace import Job

HOUR_MS = 3_600_000
LARGE = 16


@dataclass(frozen=True, slots=True)
class Figures:
    """Waits in hours; shares from 0 to 1."""

    gangs: int
    mean_h: float
    p50_h: float
    p95_h: float
    p99_h: float
    max_h: float
    small_mean_h: float
    large_mean_h: float
    large_p99_h: float
    utilisation: float
    bound: float
    racks_over_fewest: float
    promises: int
    broken: int
    cross_fabric: int
    partial: int
    held_idle: float
    evictions: int
    lost: float
    plan_ms_p50: float
    plan_ms_p99: float
    plan_ms_max: float

    @property
    def of_bound(self) -> float:
        """Utilisation as a share of the fluid bound."""
        return self.utilisation / self.bound if self.bound else 0.0


def figures(outcome: Outcome, fleet_nodes: int, bound: float | None = None) -> Figures:
    """Summarise. `bound` may be given, since it is the same for all policies on a trace."""
    waits = sorted(s.wait_ms for s in outcome.jobs)
    small = sorted(s.wait_ms for s in outcome.jobs if s.job.nodes < LARGE)
    large = sorted(s.wait_ms for s in outcome.jobs if s.job.nodes >= LARGE)
    used = fewest = 0
    for started in outcome.jobs:
        if started.job.nodes > 1:
            used += started.racks
            fewest += _fewest(outcome.fabric_racks[started.fabric], started.job.nodes)
    area = fleet_nodes * max(1, outcome.window_ms)
    plans = sorted(outcome.plan_s) or [0.0]
    return Figures(
        gangs=len(waits), mean_h=_mean(waits), p50_h=at(waits, 0.5) / HOUR_MS, p95_h=at(waits, 0.95) / HOUR_MS,
        p99_h=at(waits, 0.99) / HOUR_MS, max_h=waits[-1] / HOUR_MS, small_mean_h=_mean(small), large_mean_h=_mean(large),
        large_p99_h=at(large, 0.99) / HOUR_MS, utilisation=outcome.busy_node_ms / area,
        bound=fluid_bound([s.job for s in outcome.jobs], fleet_nodes) if bound is None else bound,
        racks_over_fewest=used / fewest if fewest else 1.0, promises=outcome.promises, broken=outcome.broken,
        cross_fabric=outcome.cross_fabric, partial=outcome.partial, held_idle=outcome.kept_node_ms / area, evictions=outcome.evictions,
        lost=outcome.lost_node_ms / area, plan_ms_p50=1000 * at(plans, 0.5), plan_ms_p99=1000 * at(plans, 0.99),
        plan_ms_max=1000 * plans[-1],
    )  # fmt: skip


def fluid_bound(jobs: Sequence[Job], fleet_nodes: int, step_ms: int = 600_000) -> float:
    """The utilisation of the arrival window that no schedule can pass: work flows like water, each gang at most at its own width.

    Whoever has most left runs first, which keeps the most width for the end of the window.
    """
    window = jobs[-1].submit_ms
    if window <= 0:
        return 1.0
    active: list[list[float]] = []      # [time left at full width, width]
    now, done, i = 0.0, 0.0, 0
    while now < window:
        while i < len(jobs) and jobs[i].submit_ms <= now:
            active.append([jobs[i].duration_ms, jobs[i].nodes])
            i += 1
        end = min(jobs[i].submit_ms if i < len(jobs) else window, now + step_ms, window)
        step = max(end - now, 1.0)
        active.sort(key=lambda a: -a[0])
        left = float(fleet_nodes)
        rates = []
        for entry in active:
            rate = min(entry[1], left)
            if rate <= 0:
                break
            left -= rate
            rates.append((entry, rate))
            step = min(step, max(1.0, entry[0] * entry[1] / rate))
        for entry, rate in rates:
            spent = min(step * rate / entry[1], entry[0])
            entry[0] -= spent
            done += spent * entry[1]
        active = [a for a in active if a[0] > 0]
        now += step
    return done / (fleet_nodes * window)


def at(ordered: Sequence[float], share: float) -> float:
    """The value at a share of a sorted list."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) / HOUR_MS if values else 0.0


def _fewest(rack_sizes: Sequence[int], nodes: int) -> int:
    count = 0
    for size in rack_sizes:
        if nodes <= 0:
            break
        nodes -= size
        count += 1
    return count
