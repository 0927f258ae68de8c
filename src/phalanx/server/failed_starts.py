"""Starts that came to nothing: whose fault it was, who waits for how long, and which node is left out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from phalanx.core.gang import Gang
from phalanx.model.cluster import Cause
from phalanx.model.work import Input, InputState
from phalanx.scheduler.backoff import retry_at_ms
from phalanx.server.pool import Pool
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.gangs")

REFUSED_NODE_MS = 30_000    # a node that refused a start is left out for that function's next ones
CRASHES = 3                 # in a row in import or @enter: then the function's starts rest, longer each time


class FailedStarts:
    """Looks at every gang that ended. Counts are kept in memory: after a restart each function gets a fresh chance."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def ended(self, unit: Unit, gang: Gang) -> None:
        """Every rank of a gang is confirmed gone, and its verdict fell."""
        verdict = gang.assignment.verdict
        if verdict is None:
            return
        pool = self._server.gangs.pool(gang.assignment.function_id)
        if gang.died_early:
            self._crashed(pool, gang, verdict.sentence)
        if verdict.cause in (Cause.REFUSED, Cause.NODE) and not verdict.user_fault:
            self._refused(pool, gang, verdict.sentence)
            self._charge(unit, gang, verdict.sentence)

    def came_through(self, gang: Gang) -> None:
        """Import and @enter went well on every rank."""
        pool = self._server.gangs.pool(gang.assignment.function_id)
        pool.crashes.clear()
        pool.resting_until_ms, pool.resting_for = 0, ""
        pool.stir()

    def started(self, gang: Gang) -> None:
        """Every rank said hello: the fleet did its part."""
        pool = self._server.gangs.pool(gang.assignment.function_id)
        pool.failed_starts = pool.not_before_ms = 0
        pool.stir()
        for member in gang.members:
            self._server.planning.refusals.accepted(member.node_id)

    def _crashed(self, pool: Pool, gang: Gang, sentence: str) -> None:
        """User code failed before it took an input. Nobody waits for a warm pool's containers: those rest from the first time on."""
        verdict = gang.assignment.verdict
        pool.crashes.append(gang.members[max(verdict.rank if verdict else 0, 0)].node_id)
        rests = len(pool.crashes) - (CRASHES - 1 if gang.assignment.input_id else 0)
        if rests <= 0 and not self._server.gangs.works_elsewhere(gang):
            return
        nodes = ", ".join(dict.fromkeys(pool.crashes))
        pool.resting_for = f"its last {len(pool.crashes)} starts failed before they took an input, on {nodes}: {sentence.splitlines()[0]}"
        pool.resting_until_ms = retry_at_ms(self._server.now_ms(), max(rests, 1))
        self._server.planning.soon_after(pool.resting_until_ms)

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
