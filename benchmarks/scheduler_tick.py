"""How long one tick takes: 100 events into the kept index and a complete plan (ids, quotas, preemption, promises, reasons)."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from phalanx.model.plan import Ask, GpuChoice, Hold, Node, NodeState, Policy, Quota, Request, Reservation, Retention, Snapshot
from phalanx.scheduler.index import Event, FleetIndex, HoldChanged, HoldEnded, NodeChanged
from phalanx.scheduler.plan import plan

FABRIC, RACK, EVENTS, TICK_MS = 252, 18, 100, 5_000
WORKSPACES = 7


@dataclass
class TickTimes:
    """Milliseconds."""

    nodes: int
    gangs: int
    build_ms: float
    ticks_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    starts: int = 0
    evictions: int = 0
    collector_ms: float = 0.0       # the longest collection of garbage, between two ticks

    def at(self, share: float, cpu: bool = False) -> float:
        """A percentile, of wall time or of this thread's CPU time."""
        ordered = sorted(self.cpu_ms if cpu else self.ticks_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Fleet:
    """A fleet that lives on between ticks: 85 % busy, two GPU types, three priorities, quotas in one cohort."""

    def __init__(self, nodes: int, gangs: int, seed: int) -> None:
        self.draw = random.Random(seed)
        self.nodes = [_node(i) for i in range(nodes)]
        self.gangs = gangs
        self.now = 10**8
        self.holds: dict[str, Hold] = {}
        self.names: list[str] = []
        self.pending: dict[str, Request] = {}
        self.count = 0
        self.out: list[Node] = []
        self.reservations: tuple[Reservation, ...] = ()
        self.retentions: tuple[Retention, ...] = ()
        self.quotas = tuple(Quota(f"w{i}", nodes // 5, "all", None) for i in range(WORKSPACES))

    def fill(self) -> list[Event]:
        """The first holds: every event of a fleet in use."""
        events: list[Event] = []
        for first in range(0, len(self.nodes), FABRIC):
            at, last = first, min(first + FABRIC, len(self.nodes))
            while at < last:
                size = min(self.draw.choice([1, 2, 4, 8, 16, 32]), last - at)
                if self.draw.random() < 0.85:
                    ids = tuple(n.node_id for n in self.nodes[at : at + size])
                    events.append(HoldChanged(self._hold(ids, self.now - self.draw.randrange(10**7), self.draw.randrange(10**7))))
                at += size
        self.refill()
        return events

    def refill(self) -> None:
        """So many gangs wait, always."""
        while len(self.pending) < self.gangs:
            self.count += 1
            name = f"q{self.count:07}"
            size = self.draw.choice([1, 2, 4, 8, 16, 32, 64, 128])
            self.pending[name] = Request(
                name, size, Ask(gpus=(GpuChoice(self.draw.choice(["H100", "H200"]), 8),)),
                self.now - self.draw.randrange(10**7), f"w{self.draw.randrange(WORKSPACES)}", priority=self.draw.choice([0, 0, 0, 1, 2]),
                predicted_ms=self.draw.randrange(60_000, 10**8), fabric_size=self.draw.choice([1, 1, 1, min(size, 2)]),
            )  # fmt: skip

    def events(self, carried: Iterable[Event]) -> list[Event]:
        """Since the last tick: what the last plan did, gangs that ended, predictions that changed, nodes that came and went."""
        events = list(carried)[:EVENTS]
        for _ in range(2):
            if len(self.out) > 20:
                events.append(NodeChanged(self.out.pop(0)))
            node = self.draw.choice(self.nodes)
            self.out.append(node)
            events.append(NodeChanged(replace(node, state=NodeState.DRAINING, state_reason="drill")))
        while len(events) < EVENTS and self.names:
            at = self.draw.randrange(len(self.names))
            name = self.names[at]
            if self.draw.random() < 0.25:
                self.names[at] = self.names[-1]
                self.names.pop()
                del self.holds[name]
                events.append(HoldEnded(name))
            else:
                self.holds[name] = replace(self.holds[name], ends_ms=self.now + self.draw.randrange(10**7))
                events.append(HoldChanged(self.holds[name]))
        return events

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.now, pending=tuple(self.pending.values()), quotas=self.quotas, reservations=self.reservations,
            retentions=self.retentions, recent_wait_ms=10**6,
        )  # fmt: skip

    def hold_for(self, request: Request, ids: tuple[str, ...]) -> Hold:
        """A start that was carried out."""
        hold = self._hold(ids, self.now, request.expected_ms)
        self.holds[hold.holder_id] = hold = replace(hold, workspace=request.workspace, priority=request.priority)
        return hold

    def _hold(self, ids: tuple[str, ...], since: int, length: int) -> Hold:
        self.count += 1
        name = f"cu-{self.count:07}"
        self.holds[name] = Hold(
            name, ids, since_ms=since, ends_ms=self.now + length, workspace=f"w{self.count % WORKSPACES}", priority=self.count % 3
        )
        self.names.append(name)
        return self.holds[name]


WARM_UP = 10        # the first plans start whatever waited when the fleet was made up; they are not counted


def measure(nodes: int, gangs: int, ticks: int, seed: int = 1) -> TickTimes:
    """Run so many ticks of the planner as a server would: one index, kept from tick to tick."""
    fleet = Fleet(nodes, gangs, seed)
    before = time.perf_counter()
    index = FleetIndex.of(fleet.nodes)
    index = index.apply(fleet.fill())
    times = TickTimes(nodes, gangs, 1000 * (time.perf_counter() - before))
    policy = Policy()
    gc.collect()
    gc.freeze()      # as the server does (serve.py): the fleet is not garbage, and what is new is looked through by the clock
    gc.disable()
    carried: list[Event] = []
    for number in range(-WARM_UP, ticks):
        fleet.now += TICK_MS
        events, snapshot = fleet.events(carried), fleet.snapshot()
        wall, cpu = time.perf_counter(), time.thread_time()
        index = index.apply(events)
        made = plan(snapshot, policy, index)
        if number >= 0:
            times.cpu_ms.append(1000 * (time.thread_time() - cpu))
            times.ticks_ms.append(1000 * (time.perf_counter() - wall))
            times.starts += len(made.starts)
            times.evictions += len(made.evict)
        carried = []
        for start in made.starts:
            carried.append(HoldChanged(fleet.hold_for(fleet.pending.pop(start.request_id), start.node_ids)))
        for evict in made.evict:
            nodes_of = fleet.holds.pop(evict.holder_id).node_ids
            fleet.names.remove(evict.holder_id)
            fleet.retentions += (Retention(evict.for_request, nodes_of, fleet.now + 120_000),)
            carried.append(HoldEnded(evict.holder_id))
        if len(carried) > EVENTS:       # the first plan starts what waited; a server would take these in at once
            index = index.apply(carried[EVENTS:])
        fleet.reservations = made.reserve
        fleet.retentions = tuple(r for r in fleet.retentions if r.request_id in fleet.pending and r.until_ms > fleet.now)
        fleet.refill()
        wall = time.perf_counter()
        gc.collect(1)
        times.collector_ms = max(times.collector_ms, 1000 * (time.perf_counter() - wall))
    gc.enable()
    gc.unfreeze()
    return times


def _node(i: int) -> Node:
    f = i // FABRIC
    return Node(
        f"n{i:06}", "H200" if f % 3 == 0 else "H100", 8, 128_000, 1 << 20, rdma=True, region="us-east", zone=f"z{f % 4}",
        network=f"net-{f}", block=f"b{f}", rack=f"r{i // RACK}", fabric_id=f"nv{i // RACK}",
    )  # fmt: skip
