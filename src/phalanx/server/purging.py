"""What is old goes: kept answers after half an hour; after a week decided calls, ended clusters and stopped apps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.model.app import App, AppVersion, Class
from phalanx.model.cluster import Assignment, Attempt, Member
from phalanx.model.kept import KeptAnswer
from phalanx.model.work import Call, CallState, Chunk, Function, Input, Output
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

EVERY_MS = 10 * 60_000
KEEP_ANSWERS_MS = 30 * 60_000       # longer than any client retries
DAY_MS = 24 * 3_600_000
DEFAULT_KEEP_DAYS = 7               # inputs and outputs are kept this long (platform-behaviour.md 6)


class Purging:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._keep_ms = int(server.config.extra.get("keep_days", DEFAULT_KEEP_DAYS)) * DAY_MS

    def start(self) -> None:
        self._server.clock.call_after(EVERY_MS, self._turn)

    def _turn(self) -> None:
        self._server.act(self.purge)
        self._server.clock.call_after(EVERY_MS, self._turn)

    def purge(self, unit: Unit) -> None:
        """Delete what nobody will ask for any more."""
        now = self._server.now_ms()
        world = self._server.world
        for answer in [k for k in world[KeptAnswer].values() if k.created_ms < now - KEEP_ANSWERS_MS]:
            unit.delete(answer)
        before = now - self._keep_ms
        stopped = {app.app_id for app in world[App].values() if app.drained and 0 < app.stopped_ms < before}
        old = stopped - {gang.assignment.app_id for gang in self._server.gangs.running.values()}     # a node may still have to clean up
        calls = {call.call_id for call in world[Call].values() if call.app_id in old or self._is_old(call, before)}
        ended = {a.assignment for a in world[Assignment].values() if a.app_id in old or (0 < a.ended_ms < before and not self._wrote(a))}
        doomed = [record for kind in (AppVersion, Class, Function) for record in world[kind].values() if record.app_id in old]
        doomed += [record for kind in (Call, Input, Output, Chunk) for record in world[kind].values() if record.call_id in calls]
        doomed += [record for kind in (Assignment, Member) for record in world[kind].values() if record.assignment in ended]
        kept = {item.input_id for item in world[Input].values() if item.call_id not in calls}
        running = self._server.gangs.running    # a living cluster still counts by its attempts
        doomed += [a for a in world[Attempt].values() if a.input_id not in kept and a.assignment not in running]
        for record in (*doomed, *self._server.secrets.unused(before)):
            unit.delete(record)
        for app_id in old:
            self._server.logs.forget(unit, app_id)
            unit.delete(world[App][app_id])
        self._server.calls.forget(calls)
        self._server.gangs.forget()

    def _wrote(self, assignment: Assignment) -> bool:
        """A log of it is left: who reads that asks for the cluster and its ranks."""
        index = self._server.logs.index
        return any(index.last((assignment.assignment, rank, assignment.app_id)) for rank in range(assignment.size))

    def _is_old(self, call: Call, before_ms: int) -> bool:
        """Decided that long ago: a deployed app lives for months, and its calls do not."""
        if call.state != CallState.DONE or call.created_ms >= before_ms:
            return False
        outputs = self._server.calls.outputs_after(call.call_id, call.num_outputs - 1)
        return all(output.created_s * 1000 < before_ms for output in outputs)
