"""Which call and input a rank worked on when it wrote a line: the runner does not say, so time and order do."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.model.cluster import Assignment
from phalanx.model.work import Input, InputState

if TYPE_CHECKING:
    from phalanx.server.server import Server

REMEMBERED = 64             # inputs of an assignment: lines come seconds late at most
ASSIGNMENTS = 4096          # the oldest are forgotten: they have ended long ago


@dataclass(frozen=True)
class _Begun:
    started_ns: int
    call_id: str
    input_id: str


class LogInputs:
    """Inputs by assignment, in the order in which they were delivered."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begun: dict[int, deque[_Begun]] = {}
        running = (item for item in server.world[Input].values() if item.state == InputState.RUNNING)
        for item in sorted(running, key=lambda item: item.started_ms):
            self.started(item)

    def started(self, item: Input) -> None:
        """An input was delivered to its assignment: what the ranks write from here on is its."""
        begun = self._begun.setdefault(item.assignment, deque(maxlen=REMEMBERED))
        if len(self._begun) > ASSIGNMENTS:
            del self._begun[next(iter(self._begun))]
        if not begun or begun[-1].input_id != item.input_id:
            begun.append(_Begun(item.started_ms * 1_000_000, item.call_id, item.input_id))

    def at(self, assignment: int, time_ns: int) -> tuple[str, ...]:
        """(call, input) of a line; only the call when several of its inputs are open at once; nothing when it can't be told."""
        begun = [begun for begun in self._begun.get(assignment, ()) if begun.started_ns <= time_ns]
        if not begun:
            return ()
        record = self._server.world[Assignment].get(assignment)
        if record is None or record.max_inputs <= 1:
            return (begun[-1].call_id, begun[-1].input_id)
        items = self._server.world[Input]
        still = [b for b in begun if (item := items.get(b.input_id)) and item.state != InputState.DONE] or begun[-1:]
        if len(still) == 1:
            return (still[0].call_id, still[0].input_id)
        return (still[0].call_id, "") if len({b.call_id for b in still}) == 1 else ()
