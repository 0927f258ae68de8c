"""Starts that came to nothing: whose fault it was, who waits for how long, and which node is left out."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from phalanx.core.gang import Gang
from phalanx.model.cluster import Cause, Failure
from phalanx.model.failed_starts import CrashedStarts
from phalanx.model.fleet import NodeState
from phalanx.model.work import Function, Input, InputState
from phalanx.scheduler.backoff import Refusals, retry_at_ms
from phalanx.scheduler.fit import options_of, serves
from phalanx.server.pool import Pool
from phalanx.server.snapshot import request_of
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.gangs")

REFUSED_NODE_MS = 30_000    # a node that refused a start is left out for that function's next ones
CRASHES = 3                 # in a row in import or @enter, in as many places: then the function's starts rest, longer each time
CRASHES_ANYWHERE = 6        # the same where the planner chose the same nodes again, though there are others


class FailedStarts:
    """Looks at every gang that ended. What failed in import or @enter is kept in the store; refused starts are counted in memory only:
    after a restart of the server the fleet gets a fresh chance."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def load(self) -> None:
        for crashed in self._server.world[CrashedStarts].values():
            self._rest(crashed)

    def ended(self, unit: Unit, gang: Gang) -> None:
        """Every rank of a gang is confirmed gone, and its verdict fell."""
        verdict = gang.assignment.verdict
        if verdict is None:
            return
        pool = self._server.gangs.pool(gang.assignment.function_id)
        if gang.died_early:
            self._crashed(unit, gang, verdict)
        if verdict.cause in (Cause.REFUSED, Cause.NODE) and not verdict.user_fault:
            self._refused(pool, gang, verdict.sentence)
            self._charge(unit, gang, verdict.sentence)

    def came_through(self, unit: Unit, gang: Gang) -> None:
        """Import and @enter went well on every rank."""
        self.forgive(unit, gang.assignment.function_id)

    def forgive(self, unit: Unit, function_id: str) -> None:
        """A start came through, or the function's code is another: what failed before says nothing any more."""
        crashed = self._server.world[CrashedStarts].get(function_id)
        if crashed is not None:
            unit.delete(crashed)
        pool = self._server.gangs.pool(function_id)
        pool.resting_until_ms, pool.resting_for = 0, ""
        pool.stir()

    def forgive_nodes(self, unit: Unit) -> None:
        """The fleet is another one: what speaks against nodes by their names speaks against others."""
        for pool in self._server.gangs.pools.values():
            pool.refused.clear()
            pool.failed_starts = pool.not_before_ms = 0
            pool.stir()
        self._server.planning.refusals = Refusals()
        for item in self._server.world[Input].values():
            if item.excluded_nodes and item.state == InputState.PENDING:
                item.excluded_nodes = []
                unit.put(item)

    def started(self, gang: Gang) -> None:
        """Every rank said hello: the fleet did its part."""
        pool = self._server.gangs.pool(gang.assignment.function_id)
        pool.failed_starts = pool.not_before_ms = 0
        pool.stir()
        for member in gang.members:
            self._server.planning.refusals.accepted(member.node_id)

    def _crashed(self, unit: Unit, gang: Gang, verdict: Failure) -> None:
        """User code failed before it took an input. Nobody waits for a warm pool's containers: those rest from the first time on."""
        function: Function | None = self._server.world[Function].get(gang.assignment.function_id)
        if function is None:
            return
        name, node_id = function.function_id, gang.members[max(verdict.rank, 0)].node_id
        crashed = self._server.world[CrashedStarts].get(name) or CrashedStarts(name, function.app_id)
        crashed.count += 1
        if node_id not in crashed.node_ids:
            crashed.node_ids.append(node_id)
        places = self._places(function)
        waits_for_it = gang.assignment.input_id and not self._server.gangs.works_elsewhere(gang)
        if not waits_for_it or _are_enough(crashed, places):
            crashed.rests += 1
            crashed.until_ms = retry_at_ms(self._server.now_ms(), crashed.rests)
            crashed.why = _why(crashed, places, verdict.sentence)
            self._rest(crashed)
        unit.put(crashed)

    def _rest(self, crashed: CrashedStarts) -> None:
        pool = self._server.gangs.pool(crashed.function_id)
        pool.resting_until_ms, pool.resting_for = crashed.until_ms, crashed.why
        pool.stir()
        if crashed.until_ms > self._server.now_ms():
            self._server.planning.soon_after(crashed.until_ms)

    def _places(self, function: Function) -> int:
        """In how many disjoint places of the fleet that is there now it could be started; at most CRASHES, more of them say no more."""
        nodes, size = self._server.planning.fleet.facts(), max(function.size, 1)
        request = request_of(function, "", 0)
        options = options_of(request.ask, {node.gpu_type for node in nodes})
        there = (node for node in nodes if node.state == NodeState.UP and self._server.agents.is_connected(node.node_id))
        able = (node for node in there if any(serves(node, request, option) for option in options))
        return sum(1 for _ in islice(able, CRASHES * size)) // size

    def _refused(self, pool: Pool, gang: Gang, sentence: str) -> None:
        now = self._server.now_ms()
        pool.failed_starts += 1
        pool.not_before_ms = retry_at_ms(now, pool.failed_starts)
        self._server.planning.soon_after(pool.not_before_ms)
        for node_id in gang.blamed_nodes:
            pool.refused[node_id] = now + REFUSED_NODE_MS
            self._server.planning.refusals.refused(node_id, sentence, now)
            self._server.planning.soon_after(pool.refused[node_id])
        LOG.warning("assignment %s: %s", gang.assignment.assignment, sentence)

    def _charge(self, unit: Unit, gang: Gang, sentence: str) -> None:
        """A start that fails each time ends with the infrastructure budget of the input that it was for."""
        item: Input | None = self._server.world[Input].get(gang.assignment.input_id)
        if not gang.took_inputs and item is not None and item.state == InputState.PENDING:
            self._server.calls.start_failed(unit, item, sentence, gang.blamed_nodes)


def _are_enough(crashed: CrashedStarts, places: int) -> bool:
    if crashed.count < CRASHES:
        return False
    return places < CRASHES or len(crashed.node_ids) >= CRASHES or crashed.count >= CRASHES_ANYWHERE


def _why(crashed: CrashedStarts, places: int, sentence: str) -> str:
    starts = f"its last {crashed.count} starts" if crashed.count > 1 else "its last start"
    few = f" (the fleet has {places} place{'' if places == 1 else 's'} for it now)" if places < CRASHES else ""
    first_line = (sentence.splitlines() or ["no reason given"])[0]
    return f"{starts} failed before they took an input, on {', '.join(crashed.node_ids[:5])}{few}: {first_line}"
