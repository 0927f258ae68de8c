"""Retries as the client defines them, and the back-off of restarts."""

from __future__ import annotations

import pytest

from phalanx.core.budgets import KEPT_NODES, excluded_after, restart_delay_ms, retry_delay_ms
from phalanx.model.work import Function


@pytest.mark.parametrize(
    ("initial_ms", "backoff", "max_ms", "delays"),
    [
        (1000, 1.0, 60_000, [1000, 1000, 1000]),        # retries=3
        (1000, 2.0, 60_000, [1000, 2000, 4000]),
        (10_000, 10.0, 60_000, [10_000, 60_000, 60_000]),
        (0, 2.0, 60_000, [1000, 1000, 1000]),           # the client's own floor
    ],
)
def test_a_retrys_delay_is_what_the_client_would_wait(initial_ms: int, backoff: float, max_ms: int, delays: list[int]) -> None:
    function = Function("fu-1", "ap-1", "work", retry_initial_ms=initial_ms, retry_backoff=backoff, retry_max_ms=max_ms)
    assert [retry_delay_ms(function, n) for n in (1, 2, 3)] == delays


def test_a_restart_is_at_once_and_then_later_each_time_up_to_a_minute() -> None:
    assert [restart_delay_ms(n) for n in (1, 2, 3, 4)] == [0, 1000, 2000, 4000]
    assert restart_delay_ms(16) == restart_delay_ms(1000) == 60_000


def test_the_latest_blamed_nodes_are_kept_each_once() -> None:
    excluded: list[str] = []
    for node_id in ("a", "b", "a", "c", "d", "e"):
        excluded = excluded_after(excluded, (node_id,))
    assert excluded == ["a", "c", "d", "e"] and len(excluded) == KEPT_NODES
