"""Traces whose functions' runs resemble each other, and how much of the lengths a function's history tells on a trace."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import replace

from phalanx.scheduler.predict import Durations
from phalanx.scheduler.simulation.trace import Job

DAY_MS = 24 * 3_600_000
_HALVINGS = 30


def alike(jobs: Sequence[Job], spread: float, seed: int = 0) -> list[Job]:
    """The same jobs with their lengths dealt anew, so that runs of one function differ by e^`spread`, as a standard deviation.

    Lengths change hands only within a family (one kind and size), so that each family keeps its lengths and the trace its work. A large
    function can't be closer than its share of its family's lengths is: `spread_of` tells what was reached. Raises ValueError below 0.
    """
    if spread < 0:
        raise ValueError(f"spread {spread}: a standard deviation is 0 or more")
    draw = random.Random(seed)
    families: dict[str, dict[str, list[int]]] = {}
    for i, job in enumerate(jobs):
        families.setdefault(job.family, {}).setdefault(job.function, []).append(i)
    deals = [_Deal(jobs, list(functions.values()), draw) for functions in families.values()]
    low, high = 0.0, 64.0                # noise so large is a shuffle
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if spread_of(_dealt(jobs, deals, middle)) < spread:
            low = middle
        else:
            high = middle
    return _dealt(jobs, deals, low)


class _Deal:
    """One family: its lengths, and for each of its jobs the length of its function and a draw of its own."""

    def __init__(self, jobs: Sequence[Job], functions: list[list[int]], draw: random.Random) -> None:
        draw.shuffle(functions)
        self.lengths = sorted(jobs[i].duration_ms for members in functions for i in members)
        self.about: list[tuple[int, float, float]] = []         # (job, logarithm of its function's length, its own draw)
        first = 0
        for members in functions:        # each function has a run of neighbours among the sorted lengths
            typical = math.log(self.lengths[first + len(members) // 2])
            self.about += [(i, typical, draw.gauss(0, 1)) for i in members]
            first += len(members)

    def deal(self, noise: float) -> list[tuple[int, int]]:
        """(job, its length): the shortest length to whoever should be shortest."""
        order = sorted(self.about, key=lambda about: (about[1] + noise * about[2], about[0]))
        return [(i, length) for (i, _, _), length in zip(order, self.lengths, strict=True)]


def _dealt(jobs: Sequence[Job], deals: list[_Deal], noise: float) -> list[Job]:
    lengths = dict(pair for deal in deals for pair in deal.deal(noise))
    return [replace(job, duration_ms=lengths[i]) for i, job in enumerate(jobs)]


def spread_of(jobs: Sequence[Job]) -> float:
    """The standard deviation of the logarithm of lengths within functions. 0: no function has two runs."""
    runs: dict[str, list[float]] = {}
    for job in jobs:
        runs.setdefault(job.function, []).append(math.log(job.duration_ms))
    freedom = sum(len(logs) - 1 for logs in runs.values())
    return math.sqrt(sum(_squares(logs) for logs in runs.values()) / freedom) if freedom else 0.0


def explained(jobs: Sequence[Job]) -> float:
    """The share of the variance of log length that predictions take away: each made from the runs that had ended when it was submitted.

    1: all is known; 0: no better than the mean of all; below: worse. Runs are taken to start at once.
    """
    durations, ended = Durations(), list[tuple[int, int]]()
    actual, wrong = [], 0.0
    for i, job in enumerate(jobs):
        while ended and ended[0][0] <= job.submit_ms:
            old = jobs[heapq.heappop(ended)[1]]
            durations.seen(old.function, old.duration_ms, old.family)
        guess = durations.predict(job.function, job.timeout_ms or DAY_MS, job.family)
        heapq.heappush(ended, (job.submit_ms + job.duration_ms, i))
        if guess is not None:
            actual.append(math.log(job.duration_ms))
            wrong += (math.log(guess) - actual[-1]) ** 2
    total = _squares(actual)
    return 1 - wrong / total if total else 0.0


def _squares(values: Sequence[float]) -> float:
    mean = sum(values) / len(values) if values else 0.0
    return sum((value - mean) ** 2 for value in values)
