"""What history tells: how long a function's next run takes, how long gangs waited lately, and what a workspace has used."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

KEPT_RUNS = 30
KEPT_WAITS = 200
KEPT_COMPARED = 300     # runs by which functions and families are compared; older ones fade
_PRIOR = 10
_FEWEST_KIN = 3


@dataclass
class Durations:
    """The logarithms of the last runs, per function and per `family` (its like: the same kind of work, the same size).

    A prediction is a geometric mean, since lengths spread over orders of magnitude: the function's own, drawn towards its family's by as
    much as the runs seen so far tell: where runs of a function resemble each other one is enough, where they don't none of them is.
    """

    logs: dict[str, deque[float]] = field(default_factory=dict)
    within: float = 1.0      # how far a run is from its function's mean, squared; as if _PRIOR runs had shown it to be half of ...
    total: float = 2.0       # ... how far it is from its family's
    compared: int = _PRIOR

    def seen(self, function_id: str, duration_ms: int, family: str = "") -> None:
        """A run ended by itself after `duration_ms`."""
        log = math.log(max(1, duration_ms))
        own, kin = self.logs.get(function_id), self.logs.get(family)
        if own and kin and len(kin) >= _FEWEST_KIN:
            self.compared = min(self.compared + 1, KEPT_COMPARED)
            self.within += (_off(log, own) - self.within) / self.compared
            self.total += (_off(log, kin) - self.total) / self.compared
        for name in {function_id, family} - {""}:
            self.logs.setdefault(name, deque(maxlen=KEPT_RUNS)).append(log)

    def forget(self, function_id: str) -> None:
        """It runs no more; what it showed of its family stays."""
        self.logs.pop(function_id, None)

    def predict(self, function_id: str, timeout_ms: int, family: str = "") -> int | None:
        """The expected length, at most the time-out. None: nothing is known, not even of its like."""
        own, kin = self._known(function_id, family)
        return min(round(math.exp(self._expected(own, kin))), timeout_ms) if own or kin else None

    def _known(self, function_id: str, family: str) -> tuple[Collection[float], Collection[float]]:
        kin = self.logs.get(family, ()) if family else ()
        return self.logs.get(function_id, ()), kin if len(kin) >= _FEWEST_KIN else ()

    def _expected(self, own: Collection[float], kin: Collection[float]) -> float:
        if not own or not kin:
            return _mean(own or kin)
        between = max(self.total - self.within, self.total / 100)
        weight = len(own) / (len(own) + self.within / between)
        return weight * _mean(own) + (1 - weight) * _mean(kin)


def _mean(logs: Collection[float]) -> float:
    return sum(logs) / len(logs)


def _off(log: float, earlier: Collection[float]) -> float:
    """The squared distance to the mean of earlier runs, less what comes of these being few."""
    return (log - _mean(earlier)) ** 2 * len(earlier) / (len(earlier) + 1)


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
