"""Traces whose functions' runs resemble each other: the same work, dealt anew."""

from __future__ import annotations

import math
import random

import pytest

from phalanx.scheduler.simulation.alike import alike, explained, spread_of
from phalanx.scheduler.simulation.trace import Job

HOUR = 3_600_000


def trace(functions: int = 40, runs: int = 10) -> list[Job]:
    """Two kinds of functions, their runs in turns, lengths over four orders of magnitude that tell nothing of their function."""
    draw = random.Random(7)
    jobs = []
    for n in range(functions * runs):
        kind = "train" if n % functions % 2 else "tune"
        length = round(HOUR * math.exp(draw.gauss(0, 2)))
        jobs.append(Job(n, n * 100 * HOUR, 8, length, function=f"f{n % functions}", family=kind))
    return jobs


def of_family(jobs: list[Job], family: str) -> list[int]:
    return sorted(job.duration_ms for job in jobs if job.family == family)


def test_every_kind_keeps_its_lengths_and_every_job_all_but_its_length() -> None:
    jobs = trace()
    dealt = alike(jobs, 0.7)
    for family in ("train", "tune"):
        assert of_family(dealt, family) == of_family(jobs, family)
    assert [(j.number, j.submit_ms, j.nodes, j.function) for j in dealt] == [(j.number, j.submit_ms, j.nodes, j.function) for j in jobs]


@pytest.mark.parametrize("spread", [0.3, 0.7, 1.4])
def test_runs_of_a_function_spread_as_asked(spread: float) -> None:
    assert spread_of(alike(trace(), spread)) == pytest.approx(spread, rel=0.02)


def test_a_seed_gives_the_same_trace_and_another_seed_another() -> None:
    jobs = trace()
    assert alike(jobs, 0.7, seed=1) == alike(jobs, 0.7, seed=1) != alike(jobs, 0.7, seed=2)


def test_more_than_the_lengths_spread_is_a_shuffle_and_less_than_nothing_is_refused() -> None:
    jobs = trace()
    assert spread_of(alike(jobs, 9.0)) == pytest.approx(spread_of(jobs), rel=0.1)
    with pytest.raises(ValueError, match="spread -1"):
        alike(jobs, -1)


def test_history_tells_the_more_the_closer_runs_are() -> None:
    jobs = trace()
    shares = [explained(alike(jobs, spread)) for spread in (0.3, 0.7, 1.4)]
    assert shares[0] > 0.85 and shares == sorted(shares, reverse=True)
    assert -0.1 < explained(jobs) < 0.1
    assert explained([]) == 0.0 and spread_of([]) == 0.0
