"""One function's queue and clusters: how many clusters it wants, and which input is next."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from phalanx.core.gang import Gang
from phalanx.model.work import Function, Input


@dataclass
class Pool:
    """In memory only; rebuilt from the rows at start."""

    function_id: str
    waiting: list[tuple[int, int, str]] = field(default_factory=list)   # (created_ms, idx, input id), sorted: the queue
    gangs: dict[int, Gang] = field(default_factory=dict)                # by assignment, until nothing of it remains
    refused: dict[str, int] = field(default_factory=dict)               # node id -> not before (ms): it refused a start
    backoff_ms: int = 0
    not_before_ms: int = 0                                              # no starts before: user code that fails at import

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


def wanted_clusters(function: Function, waiting: int, open_inputs: int, app_runs: bool) -> int:
    """How many clusters a function should have now: enough for its work, its buffer, within its limits (all in clusters)."""
    if not app_runs:
        return 0
    size = max(function.size, 1)
    work = waiting + open_inputs
    wanted = -(-work // max(function.max_inputs, 1))
    if work:
        wanted += function.buffer_nodes // size
    if function.published:
        wanted = max(wanted, function.min_nodes // size)
    if function.max_nodes:
        wanted = min(wanted, function.max_nodes // size)
    return wanted
