"""The simulator: events in virtual time, `plan()` after each, starts applied as the server would apply them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from phalanx.model.fleet import Hold, Node, NodeState
from phalanx.model.gpus import GpuChoice
from phalanx.model.plan import Ask, Plan, Policy, Quota, Request, Reservation, Retention, Snapshot, Start
from phalanx.scheduler.index import Event, FleetIndex, HoldChanged, HoldEnded, NodeChanged
from phalanx.scheduler.plan import plan
from phalanx.scheduler.predict import Durations, RecentWaits
from phalanx.scheduler.simulation.faults import Fault, FaultModel, draw_faults
from phalanx.scheduler.simulation.trace import Job

DAY_MS = 24 * 3_600_000
Estimate = Callable[[Job], int | None]


@dataclass(slots=True)
class Started:
    """What became of a job: waits are to the first start."""

    job: Job
    wait_ms: int = -1
    fabric: str = ""
    racks: int = 0
    attempts: int = 0


@dataclass
class Outcome:
    """All that a run of the simulator saw."""

    jobs: list[Started]
    window_ms: int = 0
    busy_node_ms: int = 0              # within the arrival window
    lost_node_ms: int = 0              # work done again after faults and evictions
    kept_node_ms: int = 0              # nodes kept for a gang without running it
    promises: int = 0
    broken: int = 0
    evictions: int = 0
    cross_fabric: int = 0
    partial: int = 0
    plan_s: list[float] = field(default_factory=list)
    fabric_racks: dict[str, list[int]] = field(default_factory=dict)    # rack sizes, largest first


def exact(job: Job) -> int | None:
    """The scheduler knows how long everything takes."""
    return job.duration_ms


def too_long(seed: int, up_to: float = 5.0) -> Estimate:
    """Estimates too long by a factor drawn evenly from 1 to `up_to`: how users' own limits look."""
    return lambda job: round(job.duration_ms * random.Random(seed * 1_000_003 + job.number).uniform(1, up_to))


def either_way(seed: int, up_to: float = 5.0) -> Estimate:
    """Estimates wrong by up to a factor in both directions."""
    return lambda job: round(job.duration_ms * up_to ** random.Random(seed * 1_000_003 + job.number).uniform(-1, 1))


def simulate(
    jobs: Sequence[Job], nodes: Sequence[Node], policy: Policy, estimate: Estimate | None = exact,
    faults: FaultModel | None = None, clock: Callable[[], float] | None = None, watch: Callable[[Snapshot, Plan], None] | None = None,
    quotas: tuple[Quota, ...] = (), ask: Ask | None = None, every_ms: int = 0, history: Sequence[Job] = (),
) -> Outcome:  # fmt: skip
    """Run a trace. `estimate` None: nobody gives a length, the planner's own predictions per function are used; `history` ran before.

    `every_ms`: plan at most that often, as a server with a tick does; 0: after every event. `clock` (seconds) times the plans.
    `watch` sees every snapshot (without its nodes and holds) and plan.
    """
    simulation = _Simulation(jobs, nodes, policy, estimate, faults, clock, watch, quotas, ask or _ASK, every_ms)
    for job in history:
        simulation.durations.seen(job.function, job.duration_ms, job.family)
    return simulation.run()


class _Simulation:
    def __init__(
        self, jobs: Sequence[Job], nodes: Sequence[Node], policy: Policy, estimate: Estimate | None,
        faults: FaultModel | None, clock: Callable[[], float] | None, watch: Callable[[Snapshot, Plan], None] | None,
        quotas: tuple[Quota, ...], ask: Ask, every_ms: int,
    ) -> None:  # fmt: skip
        self.quotas, self.ask, self.every_ms = quotas, ask, every_ms
        self.next_plan = self.woken = 0
        self.retentions: tuple[Retention, ...] = ()
        self.policy, self.estimate, self.clock, self.watch = policy, estimate, clock, watch
        self.index = FleetIndex.of(nodes)
        self.started = [Started(job) for job in jobs]
        self.outcome = Outcome(self.started, jobs[-1].submit_ms)
        self.racks = {node.node_id: (node.block, node.rack) for node in nodes}
        self.fabric_of = dict(self.index.home)
        self.model = faults or FaultModel()
        self.durations, self.waits = Durations(), RecentWaits()
        self.left = [job.duration_ms for job in jobs]                    # work still to do, by position
        self.names = {f"job-{i:06}": i for i in range(len(jobs))}
        self.events: list[tuple[int, int, int, str]] = []                # (time, kind, position, holder)
        self.pending: dict[str, Request] = {}
        self.running: dict[str, tuple[int, Start]] = {}                  # holder -> (since, start)
        self.promised: dict[str, int] = {}
        self.reservations: tuple[Reservation, ...] = ()
        self.busy = 0
        self.faults = draw_faults(nodes, self.model, 2 * jobs[-1].submit_ms) if faults is not None else []
        for i, job in enumerate(jobs):
            heapq.heappush(self.events, (job.submit_ms, 2, i, ""))
        for i, fault in enumerate(self.faults):
            heapq.heappush(self.events, (fault.at_ms, 1, i, "down"))
            heapq.heappush(self.events, (fault.back_ms, 1, i, "back"))
        for entry in nodes:
            self.outcome.fabric_racks.setdefault(self.index.home[entry.node_id], [])
        sizes: dict[tuple[str, tuple[str, str]], int] = {}
        for node_id, rack in self.racks.items():
            sizes[self.fabric_of[node_id], rack] = sizes.get((self.fabric_of[node_id], rack), 0) + 1
        for (name, _), size in sizes.items():
            self.outcome.fabric_racks[name].append(size)
        for name in self.outcome.fabric_racks:
            self.outcome.fabric_racks[name].sort(reverse=True)

    def run(self) -> Outcome:
        last = 0
        while self.events:
            now = self.events[0][0]
            self.outcome.busy_node_ms += self.busy * max(0, min(now, self.outcome.window_ms) - last)
            kept = {n for r in self.retentions if r.until_ms > last and r.request_id in self.pending for n in r.node_ids}
            self.outcome.kept_node_ms += len(kept) * max(0, min(now, self.outcome.window_ms) - last)
            last = min(now, self.outcome.window_ms)
            changes: list[Event] = []
            while self.events and self.events[0][0] == now:
                _, kind, i, what = heapq.heappop(self.events)
                if kind == 0:
                    self._end(now, i, what, changes)
                elif kind == 1:
                    self._fault(now, self.faults[i], what == "down", changes)
                elif kind == 2:
                    self._submit(now, i)
            self.index = self.index.apply(changes)
            if self.pending and now < self.next_plan:
                if self.woken < self.next_plan:
                    self.woken = self.next_plan
                    heapq.heappush(self.events, (self.next_plan, 3, 0, ""))     # wake up for the plan that is due
            elif self.pending:
                self.next_plan = now + self.every_ms
                self._plan(now)
            elif all(s.wait_ms >= 0 for s in self.started) and not self.running:
                break
        return self.outcome

    def _plan(self, now: int) -> None:
        self._predict()
        snapshot = Snapshot(
            now, pending=tuple(self.pending.values()), retentions=self.retentions, reservations=self.reservations, quotas=self.quotas,
            recent_wait_ms=self.waits.mean_ms,
        )  # fmt: skip
        before = self.clock() if self.clock else 0.0
        made = plan(snapshot, self.policy, self.index)
        if self.clock:
            self.outcome.plan_s.append(self.clock() - before)
        if self.watch:
            self.watch(snapshot, made)
        self.reservations = made.reserve
        for reservation in made.reserve:
            if reservation.request_id not in self.promised:
                self.promised[reservation.request_id] = reservation.start_ms
                self.outcome.promises += 1
        changes: list[Event] = []
        self.retentions = tuple(r for r in self.retentions if r.until_ms > now and r.request_id in self.pending)
        for evict in made.evict:
            nodes = self.running[evict.holder_id][1].node_ids
            self.retentions += (Retention(evict.for_request, nodes, now + 120_000),)
            self._stop(now, evict.holder_id, changes, lost_all=True)
            self.outcome.evictions += 1
        for start in made.starts:
            self._start(now, start, changes)
        self.index = self.index.apply(changes)
        if made.evict:
            self._plan(now)     # victims stop at once here, so whom they made room for starts at once

    def _start(self, now: int, start: Start, changes: list[Event]) -> None:
        request = self.pending.pop(start.request_id)
        i = self.names[start.request_id]
        record = self.started[i]
        if now > self.promised.pop(start.request_id, now):
            self.outcome.broken += 1
        if record.wait_ms < 0:
            record.wait_ms = now - record.job.submit_ms
            self.waits.started(record.wait_ms)
        record.attempts += 1
        record.fabric = start.fabric
        record.racks = len({self.racks[n] for n in start.node_ids})
        self.outcome.cross_fabric += len({self.fabric_of[n] for n in start.node_ids}) > 1
        self.outcome.partial += len(set(start.node_ids)) != record.job.nodes
        assert not any(n in self.index.fabrics[start.fabric].holder for n in start.node_ids), f"{start} takes held nodes"
        holder = f"{start.request_id}.{record.attempts}"
        self.running[holder] = (now, start)
        self.busy += len(start.node_ids)
        ends = now + request.expected_ms
        changes.append(HoldChanged(Hold(
            holder, start.node_ids, since_ms=now, ends_ms=ends, workspace=request.workspace, priority=request.priority,
        )))  # fmt: skip
        heapq.heappush(self.events, (now + self.left[i], 0, i, holder))

    def _end(self, now: int, i: int, holder: str, changes: list[Event]) -> None:
        if holder not in self.running:
            return      # a fault or an eviction ended it before
        _, start = self.running.pop(holder)
        self.busy -= len(start.node_ids)
        job = self.started[i].job
        self.durations.seen(job.function, job.duration_ms, job.family)
        changes.append(HoldEnded(holder))

    def _fault(self, now: int, fault: Fault, down: bool, changes: list[Event]) -> None:
        for node_id in fault.node_ids:
            node = self.index.fabrics[self.index.home[node_id]].nodes[node_id]
            state = NodeState.DOWN if down else NodeState.UP
            changes.append(NodeChanged(replace(node, state=state, state_reason="fault" if down else "")))
        if down:
            hit = sorted(h for h, (_, start) in self.running.items() if not set(fault.node_ids).isdisjoint(start.node_ids))
            for holder in hit:
                self._stop(now, holder, changes, lost_all=False)

    def _stop(self, now: int, holder: str, changes: list[Event], lost_all: bool) -> None:
        """A gang ends before its work is done, and waits again with its old place in the queue."""
        since, start = self.running.pop(holder)
        self.busy -= len(start.node_ids)
        i = self.names[start.request_id]
        done = now - since
        saved = 0 if lost_all else done // self.model.checkpoint_ms * self.model.checkpoint_ms
        self.outcome.lost_node_ms += (done - saved) * len(start.node_ids)
        self.left[i] = self.left[i] - min(saved, self.left[i]) + self.model.restart_ms
        changes.append(HoldEnded(holder))
        self._submit(now, i, self.started[i].attempts + 1)

    def _submit(self, now: int, i: int, attempt: int = 1) -> None:
        job = self.started[i].job
        known = self.estimate(job) if self.estimate is not None else None
        if known is not None and attempt > 1:
            known = self.left[i]
        name = f"job-{i:06}"
        self.pending[name] = Request(
            name, job.nodes, self.ask, job.submit_ms, job.workspace, job.function, job.priority,
            predicted_ms=known, timeout_ms=(job.timeout_ms or DAY_MS) if known is None else max(known, DAY_MS), attempt=attempt,
        )  # fmt: skip

    def _predict(self) -> None:
        if self.estimate is not None:
            return
        for name, request in self.pending.items():
            job = self.started[self.names[name]].job
            guess = self.durations.predict(job.function, request.timeout_ms, job.family)
            if guess != request.predicted_ms:
                self.pending[name] = replace(request, predicted_ms=guess)


_ASK = Ask(gpus=(GpuChoice("H100", 8),))
