"""What is old goes: kept answers after half an hour, stopped apps with all that belongs to them after a week."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.model.app import App, AppVersion, Class
from phalanx.model.cluster import Assignment, Attempt, Member
from phalanx.model.kept import KeptAnswer
from phalanx.model.work import Call, Chunk, Function, Input, Output
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
        for kept in [k for k in world[KeptAnswer].values() if k.created_ms < now - KEEP_ANSWERS_MS]:
            unit.delete(kept)
        old = {app.app_id for app in world[App].values() if app.drained and 0 < app.stopped_ms < now - self._keep_ms}
        if not old:
            return
        calls = {call.call_id for call in world[Call].values() if call.app_id in old}
        inputs = {item.input_id for item in world[Input].values() if item.call_id in calls}
        of_app = (AppVersion, Class, Function, Call, Assignment, Member)
        doomed = [record for kind in of_app for record in world[kind].values() if record.app_id in old]
        doomed += [record for kind in (Input, Output, Chunk) for record in world[kind].values() if record.call_id in calls]
        doomed += [attempt for attempt in world[Attempt].values() if attempt.input_id in inputs]
        for record in doomed:
            unit.delete(record)
        for app_id in old:
            self._server.logs.forget(unit, app_id)
            unit.delete(world[App][app_id])
        self._server.calls.forget(calls)
        self._server.gangs.forget(old)
