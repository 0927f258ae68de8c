"""What a client shows beside lines: containers' states in its status line, and what a function waits for.

A terminal shows waiting as a live line with the time in the queue (task_progress); the client shows that nowhere else, and does
not tell us where it writes. So what is waited for is also said as an INFO line, once it has lasted: short waits leave no line
behind. From then on the live line only counts, so that a terminal does not show the same sentence twice.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.model.cluster import Member, MemberState
from phalanx.model.work import Function

if TYPE_CHECKING:
    from phalanx.server.server import Server

SAY_AFTER_MS = 2_000            # a wait that is over sooner is not worth a line
SAY_AGAIN_MS = 30_000           # between lines of one function whose reason changes
KEPT_COMPLETED = 256            # containers of an app that a client may still count

# api_pb2.TaskState. WORKER_ASSIGNED takes the queue line away on every client; up to 1.3.5 no other state does.
STATES = {"creating": 2, "active": 4, "idle": 8, "completed": 5}
COMPLETED = STATES["completed"]


@dataclass(frozen=True)
class Shown:
    """One item for the client: a task's state, or a function's place in the queue (position == length: it waits no more)."""

    version: int
    function_id: str
    task_id: str = ""
    state: int = 0
    length: int = 0
    position: int = 0
    description: str = ""


@dataclass
class _Waiting:
    app_id: str
    sentence: str
    since_ms: int
    said: str = ""


class LogDisplay:
    """The latest of each, by app. Of this server's life: after a restart states come from the members, waits from the planner."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._versions = itertools.count(1)
        self._shown: dict[str, dict[str, Shown]] = defaultdict(dict)
        self._completed: dict[str, list[str]] = defaultdict(list)      # tasks, the first to end first
        self._waiting: dict[str, _Waiting] = {}

    def load(self) -> None:
        gone = (MemberState.EXITED, MemberState.RELEASED)
        for member in self._server.world[Member].values():
            if member.state not in gone:
                active = member.state in (MemberState.IMPORTING, MemberState.READY)
                self.task_state(member.app_id, member.function_id, member.task_id, "active" if active else "creating")

    def since(self, app_id: str, version: int) -> list[Shown]:
        """What is new behind `version`; behind 0, all that still matters."""
        items = self._shown.get(app_id)
        if not items:
            return []
        return [item for item in items.values() if item.version > version and (version or item.state != COMPLETED)]

    def task_state(self, app_id: str, function_id: str, task_id: str, state: str) -> None:
        self._put(app_id, task_id, Shown(next(self._versions), function_id, task_id, STATES[state]))
        self._waits_no_more(function_id)

    def progress(self, app_id: str, function_id: str, length: int, position: int, sentence: str) -> None:
        now = self._server.now_ms()
        waiting = self._waiting.get(function_id)
        if waiting is None:
            waiting = self._waiting[function_id] = _Waiting(app_id, sentence, now)
            self._server.clock.call_after(SAY_AFTER_MS, lambda: self._say(function_id))
        waiting.sentence = sentence
        place = f" ({position + 1} of {length})" if length > 1 else ""
        self._queue_line(function_id, waiting, f"{place}: {sentence}")

    def waits_no_more(self, function_id: str) -> None:
        """The function has what it waited for, or does not want it any more."""
        self._waits_no_more(function_id)

    def forget(self, app_id: str) -> None:
        self._shown.pop(app_id, None)
        self._completed.pop(app_id, None)

    def _queue_line(self, function_id: str, waiting: _Waiting, what: str) -> None:
        # The client takes the position for seconds in the queue, and length == position for the end of waiting.
        waited_s = (self._server.now_ms() - waiting.since_ms) // 1000
        description = f"'{self._name(function_id)}' is queued{what}"
        version = next(self._versions)
        self._put(waiting.app_id, function_id, Shown(version, function_id, length=waited_s + 1, position=waited_s, description=description))

    def _waits_no_more(self, function_id: str) -> None:
        waiting = self._waiting.pop(function_id, None)
        if waiting is not None:
            self._put(waiting.app_id, function_id, Shown(next(self._versions), function_id, length=1, position=1))

    def _put(self, app_id: str, key: str, item: Shown) -> None:
        items = self._shown[app_id]
        items.pop(key, None)
        items[key] = item
        if item.state == COMPLETED:
            completed = self._completed[app_id]
            completed.append(key)
            if len(completed) > 2 * KEPT_COMPLETED:
                for old in completed[:KEPT_COMPLETED]:
                    items.pop(old, None)
                del completed[:KEPT_COMPLETED]
        self._server.topics.wake(("logs", app_id))

    def _say(self, function_id: str) -> None:
        """Write the INFO line, when the wait lasts and there is something new to say; look again later."""
        waiting = self._waiting.get(function_id)
        if waiting is None:
            return
        if waiting.sentence != waiting.said:
            waiting.said = waiting.sentence
            self._server.logs.system_line(None, waiting.app_id, function_id, f"'{self._name(function_id)}' waits: {waiting.sentence}")
            self._queue_line(function_id, waiting, "")
        self._server.clock.call_after(SAY_AGAIN_MS, lambda: self._say(function_id))

    def _name(self, function_id: str) -> str:
        function = self._server.world[Function].get(function_id)
        return function.name if function else function_id
