"""One function's queue and clusters: which input is next, and what it has."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from phalanx.core.gang import Gang
from phalanx.model.work import Input


@dataclass
class Pool:
    """In memory only; rebuilt from the rows at start."""

    function_id: str
    waiting: list[tuple[int, int, str]] = field(default_factory=list)   # (created_ms, idx, input id), sorted: the queue
    gangs: dict[int, Gang] = field(default_factory=dict)                # by assignment, until nothing of it remains
    refused: dict[str, int] = field(default_factory=dict)               # node id -> not before (ms): it refused a start of this function
    failed_starts: int = 0                                              # in a row, by no fault of the program
    not_before_ms: int = 0                                              # no starts before: the last ones failed

    def add(self, item: Input) -> None:
        entry = (item.created_ms, item.idx, item.input_id)
        if entry not in self.waiting[-1:]:
            insort(self.waiting, entry)

    def remove(self, item: Input) -> None:
        entry = (item.created_ms, item.idx, item.input_id)
        if entry in self.waiting:
            self.waiting.remove(entry)

    def ready(self, inputs: dict[str, Input], now_ms: int) -> list[Input]:
        """Waiting inputs whose retry delay is over, in order."""
        return [inputs[input_id] for _, _, input_id in self.waiting if inputs[input_id].not_before_ms <= now_ms]

    def counted(self) -> list[Gang]:
        return [gang for gang in self.gangs.values() if gang.is_counted]

