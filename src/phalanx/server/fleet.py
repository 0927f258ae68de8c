"""The planner's index of nodes and holds, kept current by what changed since the last plan instead of being read anew for each.

Every record that a unit puts passes `Unit.put`, so nobody has to remember to say that a node or a gang changed. What is no record
(an agent's connection, a queue that became empty, a prediction, a node set aside) says so itself. Changes are only noted; they are
read when the next plan is made, so a gang that changed ten times in between is read once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.core.gang import Gang
from phalanx.model.app import App
from phalanx.model.cluster import Assignment, Attempt
from phalanx.model.fleet import Hold, Node, NodeState
from phalanx.model.node import NodeRecord
from phalanx.model.work import Function, Input
from phalanx.scheduler.index import Event, FleetIndex, HoldChanged, HoldEnded, NodeChanged, NodeGone
from phalanx.scheduler.predict import Durations
from phalanx.server.gangs import STOPPED_APP_STATES
from phalanx.server.giving_way import turn_ends_ms
from phalanx.server.pool import Pool
from phalanx.server.preempting import is_idle, preemptible_after_ms
from phalanx.server.snapshot import family_of, goes_on_with_inputs, hold_of, node_of

if TYPE_CHECKING:
    from phalanx.server.server import Server

FREEZE_FROM = 1000      # nodes: of a smaller fleet a collection takes no time
BETWEEN_MS = 1_000      # from the end of an input until its cluster has taken the next one, or left: nobody borrows its nodes meanwhile


class Fleet:
    """`current()` is the index as of now."""

    def __init__(self, server: Server, durations: Durations) -> None:
        self._server = server
        self._durations = durations
        self._index: FleetIndex | None = None
        self._nodes: set[str] = set()               # whose record, connection or standing changed
        self._gangs: dict[int, str] = {}            # assignments that changed -> their clusters
        self._aside: dict[str, str] = {}            # nodes that refuse too often, and why, as of the last plan
        self._seen: dict[str, tuple[bool, int | None, str]] = {}     # function -> (inputs wait, predicted length, family) at the last plan
        self._families: dict[str, set[str]] = {}    # functions whose predictions one run may change
        self._cpu_milli: int | None = None
        self._facts: tuple[Node, ...] | None = None
        self.assignments: dict[str, int] = {}       # of every hold in the index
        self.protected: dict[str, int] = {}         # holds that may not be stopped for others at once, and from when they may
        server.world.watch(NodeRecord, lambda record: self.node_changed(record.node_id))
        server.world.watch(Assignment, self._gang_changed)
        server.world.watch(Attempt, self._attempt_changed)
        server.world.watch(Function, lambda function: self.gangs_changed(function.function_id))

    def node_changed(self, node_id: str) -> None:
        """Its record, or its agent's connection."""
        self._nodes.add(node_id)
        self._cpu_milli = self._facts = None

    def gangs_changed(self, function_id: str) -> None:
        """All of a function's, by something that is no record of theirs."""
        pool = self._server.gangs.pools.get(function_id)
        if pool is not None:
            pool.stir()
            self._mark(pool)

    def agents_changed(self, agent_ids: set[str]) -> None:
        """They are heard of, or not, as they were not before."""
        for record in self._server.world[NodeRecord].values():
            if record.agent_id in agent_ids:
                self.node_changed(record.node_id)

    def like(self, function: Function) -> set[str]:
        """The functions whose prediction changes when this one has run."""
        return self._families.get(family_of(function), {function.function_id})

    def current(self, touched: Iterable[str], aside: dict[str, str]) -> FleetIndex:
        """`touched`: functions whose queue or runs changed since the last call. `aside`: nodes that refuse too often, and why."""
        self._nodes |= {node_id for node_id in aside.keys() | self._aside.keys() if aside.get(node_id) != self._aside.get(node_id)}
        self._aside = aside
        for function_id in touched:
            self._look_at(function_id)
        index = self._index
        if index is None:
            index = FleetIndex()
            self._nodes = set(self._server.world[NodeRecord])
            self._gangs = {number: gang.assignment.cluster_id for number, gang in self._server.gangs.running.items()}
        events = [*map(self._node_event, sorted(self._nodes)), *(self._hold_event(*entry) for entry in sorted(self._gangs.items()))]
        is_first = self._index is None
        self._index = index.apply(events) if events else index
        self._nodes, self._gangs = set(), {}
        if is_first and len(self._index.home) >= FREEZE_FROM:
            gc.collect()
            gc.freeze()     # the fleet is not garbage: a collection that walks it takes longer than a plan
        return self._index

    def recount(self) -> None:
        """Debug mode: AssertionError where the kept index differs from the world as it is now."""
        assert self._index is not None
        world, running = self._server.world, self._server.gangs.running
        nodes = {node_id: self._node(record) for node_id, record in world[NodeRecord].items() if not record.removed}
        holds = {gang.assignment.cluster_id: self._hold(gang) for gang in running.values()}
        kept_nodes = {node.node_id: node for node in self._index.all_nodes()}
        kept_holds = {hold.holder_id: hold for hold in self._index.all_holds()}
        assert kept_nodes == nodes, f"nodes: kept {_unlike(kept_nodes, nodes)}, recounted {_unlike(nodes, kept_nodes)}"
        assert kept_holds == holds, f"holds: kept {_unlike(kept_holds, holds)}, recounted {_unlike(holds, kept_holds)}"
        self._index.recount()

    def cpu_milli(self) -> int:
        """Of the machines whose agents are here; the nodes of one agent share theirs."""
        if self._cpu_milli is None:
            of_agent: dict[str, int] = {}
            for node in self._server.world[NodeRecord].values():
                if self._server.agents.is_connected(node.node_id):
                    of_agent[node.agent_id] = max(of_agent.get(node.agent_id, 0), node.cpu_milli)
            self._cpu_milli = sum(of_agent.values())
        return self._cpu_milli

    def facts(self) -> tuple[Node, ...]:
        """Every node as if its agent were here: what the fleet can be."""
        if self._facts is None:
            records = self._server.world[NodeRecord].values()
            self._facts = tuple(node_of(record, connected=True) for record in records if not record.removed)
        return self._facts

    # ------------------------------------------------------------ what changed

    def _gang_changed(self, assignment: Assignment) -> None:
        self._gangs[assignment.assignment] = assignment.cluster_id
        self._server.gangs.pool(assignment.function_id).stir()

    def _attempt_changed(self, attempt: Attempt) -> None:
        gang = self._server.gangs.running.get(attempt.assignment)
        if gang is not None:
            self._gangs[attempt.assignment] = gang.assignment.cluster_id

    def _look_at(self, function_id: str) -> None:
        """Its gangs are idle, or expected to end, by what waits and what ran."""
        function, pool = self._server.world[Function].get(function_id), self._server.gangs.pools.get(function_id)
        if function is None or pool is None or self._is_over(function, pool):
            self._forget(function_id)
            return
        family = family_of(function)
        self._families.setdefault(family, set()).add(function_id)
        now = bool(pool.waiting), self._predicted(function), family
        seen = self._seen.get(function_id)
        if seen != now:
            if seen is not None and seen[2] != family:      # it was created again, of another size
                self._leave(function_id, seen[2])
            self._seen[function_id] = now
            self._mark(pool)

    def _mark(self, pool: Pool) -> None:
        self._gangs |= {number: gang.assignment.cluster_id for number, gang in pool.gangs.items()}

    def _is_over(self, function: Function, pool: Pool) -> bool:
        """Its app was stopped, and nothing of it is left to predict."""
        app = self._server.world[App].get(function.app_id)
        return not pool.gangs and not pool.waiting and (app is None or app.state in STOPPED_APP_STATES)

    def _forget(self, function_id: str) -> None:
        """Every `modal run` of a program makes functions of the same family anew, and each run would look at all there ever were."""
        self._durations.forget(function_id)
        seen = self._seen.pop(function_id, None)
        if seen is not None:
            self._leave(function_id, seen[2])

    def _leave(self, function_id: str, family: str) -> None:
        self._families[family].discard(function_id)
        if not self._families[family]:
            del self._families[family]

    def _node_event(self, node_id: str) -> Event:
        record = self._server.world[NodeRecord].get(node_id)
        return NodeGone(node_id) if record is None or record.removed else NodeChanged(self._node(record))

    def _hold_event(self, number: int, cluster_id: str) -> Event:
        gang = self._server.gangs.running.get(number)
        if gang is None:
            self.assignments.pop(cluster_id, None)
            self.protected.pop(cluster_id, None)
            return HoldEnded(cluster_id)
        hold = self._hold(gang)
        self.assignments[cluster_id] = number
        if hold.preemptible_after_ms is not None and hold.preemptible_after_ms > hold.since_ms:
            self.protected[cluster_id] = hold.preemptible_after_ms
        else:
            self.protected.pop(cluster_id, None)
        return HoldChanged(hold)

    # ------------------------------------------------------------ as the planner sees it

    def _node(self, record: NodeRecord) -> Node:
        node = node_of(record, self._server.agents.is_connected(record.node_id))
        aside = self._aside.get(record.node_id, "")
        return replace(node, state=NodeState.CORDONED, state_reason=aside) if aside and node.state == NodeState.UP else node

    def _hold(self, gang: Gang) -> Hold:
        """What it works on, its predicted end, where its function has a history, and whether it may be given up."""
        function = self._server.world[Function][gang.assignment.function_id]
        since_ms, ends_ms = self._span(gang, function)
        return replace(
            hold_of(gang, function, gang.members), warm=is_idle(self._server, gang), ending=not gang.is_counted, since_ms=since_ms,
            ends_ms=ends_ms, preemptible_after_ms=preemptible_after_ms(self._server, gang),
        )  # fmt: skip

    def _span(self, gang: Gang, function: Function) -> tuple[int, int | None]:
        """Since when it does what it does now, and until when; where inputs wait it may take others until its turn is over."""
        assignment, inputs, grace_ms = gang.assignment, self._server.world[Input], self._server.config.grace_ms
        began = [inputs[attempt.input_id].started_ms for attempt in gang.open if attempt.input_id in inputs]
        since_ms = min(began, default=assignment.idle_since_ms or assignment.created_ms)
        if assignment.stopped_ms:
            return since_ms, assignment.stopped_ms + grace_ms
        if assignment.draining and not gang.open:
            return since_ms, since_ms + BETWEEN_MS
        predicted = self._predicted(function)
        if predicted is None:
            return since_ms, None
        goes_on = goes_on_with_inputs(gang, function) and self._server.gangs.pool(function.function_id).waiting
        if goes_on and gang.took_inputs and not gang.open:      # it is about to take the next, or to give way
            since_ms += BETWEEN_MS - predicted
        ends_ms = max(began, default=since_ms) + predicted
        return since_ms, max(ends_ms, turn_ends_ms(self._server, gang)) if goes_on else ends_ms

    def _predicted(self, function: Function) -> int | None:
        return self._durations.predict(function.function_id, function.timeout_s * 1000, family_of(function))


def _unlike(mine: dict[str, object], other: dict[str, object]) -> object:
    return {name: value for name, value in mine.items() if other.get(name) != value}
