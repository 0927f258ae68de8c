"""Who comes first, what history predicts, and how many clusters a function should have."""

from __future__ import annotations

import pytest

from phalanx.model.plan import NodeState, Policy, Retention, Snapshot, Usage
from phalanx.scheduler.autoscale import Member, Pool, Wanted, next_look_ms, wanted
from phalanx.scheduler.backoff import requeue_at_ms, retry_at_ms
from phalanx.scheduler.order import over_share, queue
from phalanx.scheduler.plan import plan
from phalanx.scheduler.predict import Durations, RecentWaits, decayed, remaining_ms
from tests.scheduler.builders import HOUR, MINUTE, gang, hold, nodes, started


def ids(*pending: object, **more: object) -> list[str]:
    return [r.request_id for r in queue(Snapshot(10 * HOUR, pending=pending, **more), Policy())]  # type: ignore[arg-type]


def test_priority_before_everything_and_warm_gangs_last() -> None:
    high, warm = gang("high", 1, priority=1, submitted_ms=9 * HOUR), gang("warm", 1, priority=9, warm=True)
    assert ids(gang("old", 1), high, warm) == ["high", "old", "warm"]


def test_short_gangs_first_until_a_long_one_has_waited_many_times_as_long_as_others_do() -> None:
    long, short = gang("long", 4, predicted_ms=20 * HOUR), gang("short", 4, predicted_ms=HOUR, submitted_ms=8 * HOUR)
    assert ids(long, short, recent_wait_ms=5 * HOUR) == ["short", "long"]
    assert ids(long, short, recent_wait_ms=5 * MINUTE) == ["long", "short"]


def test_a_workspace_over_twice_its_share_stands_back() -> None:
    usage = (Usage("greedy", 900), Usage("modest", 10), Usage("other", 10))
    assert over_share(usage, ()) == {"greedy": 1, "modest": 0, "other": 0}
    assert ids(gang("a", 1, workspace="greedy"), gang("b", 1, workspace="modest", submitted_ms=HOUR), usage=usage) == ["b", "a"]


def test_weights_are_shares() -> None:
    assert over_share((Usage("greedy", 900, 9), Usage("modest", 100, 1)), ()) == {"greedy": 0, "modest": 0}


def test_use_decays_by_half_lives() -> None:
    assert [decayed(1000, t * HOUR, HOUR) for t in (0, 1, 2)] == [1000, 500, 250]
    assert 500 < decayed(1000, HOUR // 2, HOUR) < 1000


def test_lengths_are_predicted_per_function_then_per_kind_and_bounded_by_the_timeout() -> None:
    known = Durations()
    assert known.predict("f", HOUR) is None
    for run in (10, 1000, 100):
        known.seen("f", run * 1000, "kind")
    assert known.predict("f", HOUR) == 100_000
    assert known.predict("new", HOUR, "kind") == 100_000
    assert known.predict("f", MINUTE) == MINUTE


def test_an_overdue_run_is_expected_to_need_half_as_long_again() -> None:
    assert remaining_ms(0, -HOUR, MINUTE) == MINUTE
    assert remaining_ms(HOUR, 0, MINUTE) == HOUR // 2


def test_recent_waits_forget() -> None:
    waits = RecentWaits()
    assert waits.mean_ms == 0
    for wait in [HOUR] * 5 + [MINUTE] * 200:
        waits.started(wait)
    assert waits.mean_ms == MINUTE


def test_retries_back_off_and_so_do_gangs_that_had_others_stopped() -> None:
    assert [retry_at_ms(0, n) for n in (1, 2, 3, 99)] == [1000, 2000, 4000, 300_000]
    assert [requeue_at_ms(0, n) for n in (0, 1, 2, 99)] == [0, 30_000, 60_000, 300_000]


@pytest.mark.parametrize(("inputs", "members", "expected"), [
    (0, (), Wanted()),
    (3, (), Wanted(3)),
    (3, (Member("a", started=False), Member("b", started=False)), Wanted(1, served=2)),
    (1, (Member("a", idle_since_ms=0),), Wanted()),
    (2, (Member("a", 1), Member("b", idle_since_ms=0)), Wanted(1, served=1)),
    (0, (Member("a", idle_since_ms=0),), Wanted(end=("a",))),
    (0, (Member("a", idle_since_ms=9 * MINUTE + 30_000),), Wanted()),
    (0, (Member("a", started=False),), Wanted(withdraw=("a",))),
])  # fmt: skip
def test_the_autoscaler_from_zero(inputs: int, members: tuple[Member, ...], expected: Wanted) -> None:
    assert wanted(Pool("fu", 4), members, inputs, 10 * MINUTE) == expected


def test_the_autoscaler_keeps_min_adds_buffer_while_active_and_stops_at_max() -> None:
    pool = Pool("fu", 4, min_nodes=8, buffer_nodes=4, max_nodes=16)
    assert wanted(pool, (), 0, 0) == Wanted(2, 2)
    up = (Member("a", 1), Member("b", 1))
    assert wanted(pool, up, 0, 0) == Wanted(1, 1)
    assert wanted(pool, up, 9, 0) == Wanted(2, 0)
    idle = (Member("a", idle_since_ms=0), Member("b", idle_since_ms=0))
    assert wanted(pool, idle, 0, HOUR) == Wanted(), "min is kept, the buffer only while there is work"


def test_a_gap_shorter_than_the_window_does_not_flap() -> None:
    pool = Pool("fu", 1, scaledown_window_ms=MINUTE)
    member = Member("a", idle_since_ms=0)
    assert wanted(pool, (member,), 0, MINUTE - 1) == Wanted()
    assert next_look_ms(pool, (member,)) == MINUTE
    assert wanted(pool, (member,), 0, MINUTE) == Wanted(end=("a",))


def test_concurrent_inputs_share_a_cluster() -> None:
    pool = Pool("fu", 2, inputs_per_cluster=4)
    assert wanted(pool, (), 9, 0) == Wanted(3)
    assert wanted(pool, (Member("a", 2),), 2, 0) == Wanted()


def test_a_warm_gang_gives_its_nodes_to_a_call_that_waits() -> None:
    fleet = nodes(2)
    made = plan(Snapshot(0, fleet, (hold("pool", fleet, None, warm=True),), (gang("call", 2),)))
    assert [(e.holder_id, e.for_request) for e in made.evict] == [("pool", "call")]
    assert started(plan(Snapshot(0, fleet, pending=(gang("a-warm", 2, warm=True), gang("call", 2))))) == ["call"]


def test_who_has_nodes_kept_goes_first_in_its_priority_and_lends_what_it_can_not_use() -> None:
    fleet = nodes(2)
    kept = Retention("gang", ("node-00", "node-01"), 2 * MINUTE)
    short, long = gang("short", 2, timeout_ms=MINUTE, predicted_ms=None), gang("gang", 3, timeout_ms=24 * HOUR, predicted_ms=None)
    more = nodes(1, "down", state=NodeState.DOWN)
    made = plan(Snapshot(MINUTE // 2, fleet + more, pending=(short, long), retentions=(kept,)))
    assert made.order == ("gang", "short") and started(made) == ["short"], "done before the time is over"
    back = plan(Snapshot(MINUTE // 2, fleet + nodes(1, "down"), pending=(short, long), retentions=(kept,)))
    assert started(back) == ["gang"]
