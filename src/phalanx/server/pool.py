"""One function's queue and clusters: which input is next, and what it has."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from phalanx.core.gang import Gang
from phalanx.model.work import Input, InputState


@dataclass
class Pool:
    """In memory only; rebuilt from the rows at start."""

    function_id: str
    waiting: list[tuple[int, int, str]] = field(default_factory=list)   # (created_ms, idx, input id), sorted: the queue
    delayed: dict[str, int] = field(default_factory=dict)               # input id of a retry that waits -> not before (ms)
    gangs: dict[int, Gang] = field(default_factory=dict)                # by assignment, until nothing of it remains
    refused: dict[str, int] = field(default_factory=dict)               # node id -> not before (ms): it refused a start of this function
    failed_starts: int = 0                                              # in a row, by no fault of the program
    not_before_ms: int = 0                                              # no starts before: the last ones failed
    resting_until_ms: int = 0                                           # no starts before: the last ones failed in import or @enter
    resting_for: str = ""                                               # and what is said about it
    ordinal: int = 0                                                    # pools in the order in which they were made
    touched: set[str] = field(default_factory=set)                      # of all pools: whose demand may have changed since the last plan

    def stir(self) -> None:
        """What it wants may be something else now."""
        self.touched.add(self.function_id)

    def add(self, item: Input) -> None:
        entry = _entry(item)
        at = bisect_left(self.waiting, entry)
        if entry not in self.waiting[at : at + 1]:
            self.waiting.insert(at, entry)
        self.stir()
        if item.not_before_ms:
            self.delayed[item.input_id] = item.not_before_ms

    def remove(self, item: Input) -> None:
        entry = _entry(item)
        at = bisect_left(self.waiting, entry)
        if entry in self.waiting[at : at + 1]:
            del self.waiting[at]
        self.delayed.pop(item.input_id, None)
        self.stir()

    def ready(self, inputs: dict[str, Input], now_ms: int, most: int | None = None) -> list[Input]:
        """Waiting inputs whose retry delay is over, in order; the first few of them, for there may be many thousands."""
        return [inputs[input_id] for input_id in islice(self._ready_ids(now_ms), most)]

    def count_ready(self, now_ms: int) -> int:
        return len(self.waiting) - sum(1 for not_before_ms in self.delayed.values() if not_before_ms > now_ms)

    def is_ready(self, item: Input, now_ms: int) -> bool:
        """Does it wait here, with no retry's delay before it?"""
        return item.state == InputState.PENDING and self.delayed.get(item.input_id, 0) <= now_ms

    def _ready_ids(self, now_ms: int) -> Iterator[str]:
        return (input_id for _, _, input_id in self.waiting if self.delayed.get(input_id, 0) <= now_ms)

    def counted(self) -> list[Gang]:
        return [gang for gang in self.gangs.values() if gang.is_counted]


def _entry(item: Input) -> tuple[int, int, str]:
    return item.created_ms, item.idx, item.input_id
