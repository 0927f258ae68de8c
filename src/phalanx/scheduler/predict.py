"""What history tells: how long a function's next run takes, how long gangs waited lately, and what a workspace has used."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

KEPT_RUNS = 30
KEPT_WAITS = 200


@dataclass
class Durations:
    """Per function the last runs; the prediction is their geometric mean, since lengths spread over orders of magnitude.

    An unknown function borrows from its like (`family`: the same kind of work, the same size).
    """

    runs: dict[str, deque[int]] = field(default_factory=dict)

    def seen(self, function_id: str, duration_ms: int, family: str = "") -> None:
        """A run ended by itself after `duration_ms`."""
        for name in {function_id, family} - {""}:
            self.runs.setdefault(name, deque(maxlen=KEPT_RUNS)).append(duration_ms)

    def predict(self, function_id: str, timeout_ms: int, family: str = "") -> int | None:
        """The expected length, at most the time-out. None: nothing is known, not even of its like."""
        for name, least in ((function_id, 3), (family, 3), (function_id, 1)):
            known = self.runs.get(name) if name else None
            if known is not None and len(known) >= least:
                return min(round(math.exp(sum(math.log(max(1, run)) for run in known) / len(known))), timeout_ms)
        return None


@dataclass
class RecentWaits:
    """The mean wait of the gangs that started last: what the age guard is measured against."""

    waits: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_WAITS))

    def started(self, wait_ms: int) -> None:
        """A gang started after waiting so long."""
        self.waits.append(wait_ms)

    @property
    def mean_ms(self) -> int:
        """0 before the first."""
        return sum(self.waits) // len(self.waits) if self.waits else 0


def remaining_ms(now_ms: int, since_ms: int, ends_ms: int) -> int:
    """How much longer a run goes on. One that outlived its prediction is taken to need half as long again as it already ran:

    durations here are heavy-tailed, and "any moment now" kept the reserved gang's nodes idle for hours (mean wait +2 %, large p99 +10 %).
    """
    if ends_ms > now_ms:
        return ends_ms - now_ms
    return max(1, (now_ms - since_ms) // 2)


def decayed(node_ms: int, elapsed_ms: int, half_life_ms: int) -> int:
    """Use that is one half-life old counts half. Integer, the same everywhere."""
    halvings, rest = divmod(max(0, elapsed_ms), half_life_ms)
    value = node_ms >> min(halvings, 62)
    return value - value * rest // (2 * half_life_ms)    # a straight line between two halvings
