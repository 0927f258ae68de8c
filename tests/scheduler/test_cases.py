"""Acceptance cases from the field, by their numbers, against the planner."""

from __future__ import annotations

from dataclasses import replace

from phalanx.model.plan import (
    Arrival,
    Ask,
    NodeState,
    Offer,
    Policy,
    Quota,
    ReasonCode,
    Rented,
    Request,
    Retention,
    Snapshot,
    sentence,
)
from phalanx.scheduler.autoscale import Pool, check_pool
from phalanx.scheduler.backoff import Refusals, retry_at_ms
from phalanx.scheduler.fit import can_ever_fit
from phalanx.scheduler.index import FleetIndex, HoldChanged, HoldEnded
from phalanx.scheduler.plan import plan
from phalanx.scheduler.simulation.run import simulate
from phalanx.scheduler.simulation.topology import uniform
from phalanx.scheduler.simulation.trace import Job
from tests.scheduler.builders import HOUR, MINUTE, apply, check, cpu_node, gang, hold, node, nodes, reason_of, share, started


def test_case_2_three_free_nodes_start_nothing_of_a_gang_of_four() -> None:
    made = plan(Snapshot(0, nodes(3) + nodes(1, "busy"), (hold("x", ("busy-00",)),), (gang("g", 4),)))
    assert made.starts == ()


def test_case_3_a_gang_that_grew_waits_whole_while_its_old_version_runs() -> None:
    fleet = nodes(4)
    old = hold("v1", fleet[:2])
    snapshot = Snapshot(0, fleet, (old,), (gang("v2", 4),))
    assert started(plan(snapshot)) == []
    assert started(plan(replace(snapshot, holds=()))) == ["v2"]


def test_case_5_two_gangs_lost_a_node_each_and_one_recovers_whole() -> None:
    """Both keep their healthy node; those two are enough for one gang only: the first has both at once, the other nothing."""
    fleet = nodes(2) + tuple(replace(n, state=NodeState.DOWN, state_reason="lost") for n in nodes(2, "dead"))
    kept = (Retention("a", ("node-00",), 2 * MINUTE), Retention("b", ("node-01",), 2 * MINUTE))
    snapshot = Snapshot(0, fleet, pending=(gang("a", 2), gang("b", 2)), retentions=kept)
    for now_ms in (0, 3 * MINUTE):
        made = plan(replace(snapshot, now_ms=now_ms))
        assert started(made) == ["a"]
        assert reason_of(made, "b").code in (ReasonCode.DRAINING, ReasonCode.NO_CAPACITY)
    with_one_more = replace(snapshot, nodes=fleet + nodes(1, "new"), pending=(*snapshot.pending, gang("long", 2)))
    assert started(plan(with_one_more)) == ["a"] and plan(with_one_more).starts[0].node_ids == ("new-00", "node-00")


def test_case_6_a_hundred_requests_of_one_unit_on_a_fleet_of_one_all_finish() -> None:
    jobs = [Job(i, 0, 1, MINUTE) for i in range(100)]
    assert all(s.wait_ms >= 0 for s in simulate(jobs, uniform(1, 1, 1), Policy()).jobs)


def test_case_9_a_call_beyond_the_quota_waits_with_the_numbers() -> None:
    mine = hold("mine", nodes(2), workspace="ann")
    made = plan(Snapshot(0, nodes(8), (mine,), (gang("g", 4, workspace="ann"),), quotas=(Quota("ann", 4),)))
    reason = reason_of(made, "g")
    assert reason.code is ReasonCode.QUOTA
    assert sentence(reason) == "quota of ann: 2 of 4 nodes in use, this asks 4"


def test_case_11_a_start_that_the_runtime_refuses_backs_off_and_the_next_one_starts() -> None:
    fleet = nodes(4)
    refused = gang("first", 4, not_before_ms=retry_at_ms(0, 1), attempt=2)
    made = plan(Snapshot(0, fleet, pending=(refused, gang("second", 2, submitted_ms=1))))
    assert started(made) == ["second"]
    assert reason_of(made, "first").code is ReasonCode.BACKOFF
    assert reason_of(made, "first").earliest_start_ms == 1000


def test_case_11_a_node_that_keeps_refusing_is_set_aside_with_a_reason() -> None:
    refusals = Refusals()
    assert [refusals.refused("node-00", "no space", at) for at in (0, 1, 2)] == [False, False, True]
    assert refusals.aside(3) == {"node-00": "refused 3 starts: no space"}
    assert refusals.aside(20 * MINUTE) == {}
    refusals.accepted("node-00")
    assert not refusals.refused("node-00", "no space", 21 * MINUTE)


def test_case_12_two_gangs_in_one_tick_on_eight_nodes_get_disjoint_hosts() -> None:
    snapshot = Snapshot(0, nodes(8), pending=(gang("a", 4), gang("b", 4, submitted_ms=10)))
    made = plan(snapshot)
    check(snapshot, made)
    assert started(made) == ["a", "b"]


def test_case_13_and_20_half_a_gang_is_never_ordered_and_what_came_for_it_is_given_back() -> None:
    template = node("template")
    one = Offer("cloud", template, most=1, boot_ms=MINUTE)
    snapshot = Snapshot(0, (node("there", state=NodeState.DOWN),), pending=(gang("g", 2),), offers=(one,))
    assert plan(snapshot).provision == ()
    two = plan(replace(snapshot, offers=(replace(one, most=2),)))
    assert [(p.count, p.for_request) for p in two.provision] == [(2, "g")]
    assert reason_of(two, "g").code is ReasonCode.PROVISIONING
    # one came, the other failed, and the engine has no more: the gang waits whole and the idle node goes back
    came = replace(snapshot, now_ms=20 * MINUTE, nodes=nodes(1), rented=(Rented("node-00", 0),), offers=(replace(one, most=0),))
    made = plan(came)
    assert (made.starts, made.provision, made.release) == ((), (), ("node-00",))


def test_case_15_a_node_not_heard_of_is_not_chosen() -> None:
    silent = replace(nodes(1)[0], state=NodeState.DOWN, state_reason="missed its lease")
    made = plan(Snapshot(0, (silent, *nodes(2, "ok")), pending=(gang("g", 2),)))
    assert made.starts[0].node_ids == ("ok-00", "ok-01")


def test_case_17_a_cpu_function_of_low_priority_does_not_block_a_gang_for_ever() -> None:
    fleet = nodes(4)
    squatter = hold("ta-1", fleet[:1], None, whole=False, cpu_milli=125, memory_mib=128)
    snapshot = Snapshot(0, fleet, (squatter,), (gang("g", 4, priority=1),))
    made = plan(snapshot)
    assert [(e.holder_id, e.for_request) for e in made.evict] == [("ta-1", "g")]
    assert reason_of(made, "g").code is ReasonCode.PREEMPTING
    assert started(plan(apply(snapshot, made))) == ["g"]


def test_case_17_plain_functions_go_to_nodes_without_gpus_where_there_are_some() -> None:
    made = plan(Snapshot(0, (*nodes(4), cpu_node("cpu-0")), pending=tuple(share(f"ta-{i}") for i in range(4))))
    assert {n for s in made.starts for n in s.node_ids} == {"cpu-0"}


def test_case_18_exactly_one_whole_victim_of_lower_priority() -> None:
    fleet = nodes(8)
    low = (hold("low-a", fleet[:4], 9 * HOUR, since_ms=-HOUR), hold("low-b", fleet[4:], 9 * HOUR, since_ms=-2 * HOUR))
    made = plan(Snapshot(0, fleet, low, (gang("high", 4, priority=1),)))
    assert [e.holder_id for e in made.evict] == ["low-a"], "the one with less work to lose"


def test_case_18_nobody_is_stopped_when_that_would_not_make_room() -> None:
    fleet = nodes(4)
    holds = (hold("low", fleet[:2], 9 * HOUR), hold("peer", fleet[2:], 9 * HOUR, priority=1))
    made = plan(Snapshot(0, fleet, holds, (gang("high", 4, priority=1),)))
    assert made.evict == ()
    assert reason_of(made, "high").code is ReasonCode.NO_CAPACITY


def test_case_21_every_wait_has_one_code_with_numbers() -> None:
    fleet = nodes(4, "a", network="net-1") + nodes(3, "b", network="net-2")
    snapshot = Snapshot(0, fleet, (hold("cu-1", fleet[:2], HOUR),), (gang("g", 4),))
    reason = reason_of(plan(snapshot), "g")
    assert reason.code is ReasonCode.FRAGMENTED
    assert sentence(reason) == "waiting for 4 nodes with 8 H100 on one network: 5 free, at most 3 of them together (net-2)"
    assert reason.earliest_start_ms == HOUR
    other = plan(replace(snapshot, pending=(gang("g", 4), gang("h", 3, submitted_ms=1))))
    assert sentence(reason_of(other, "g")) == "waiting for 4 nodes with 8 H100: 2 free, 5 held by cu-1 and h"


def test_case_21_who_would_delay_a_promise_is_told_whom_it_waits_for() -> None:
    fleet = nodes(4)
    holds = (hold("cu-1", fleet[:3], HOUR),)
    big, long, short = gang("big", 4, submitted_ms=-HOUR), gang("long", 1, predicted_ms=3 * HOUR), gang("short", 1, predicted_ms=MINUTE)
    assert started(plan(Snapshot(0, fleet, holds, (big, long, short)))) == ["short"]
    held = plan(Snapshot(0, fleet, holds, (big, long)))
    assert sentence(reason_of(held, "long")) == "waiting for 1 node with 8 H100: 1 free, kept for big which starts first"


def test_case_23_two_cpus_on_nodes_of_one_can_never_fit() -> None:
    request = Request("g", 2, Ask(cpu_milli=2000))
    reason = can_ever_fit(request, [cpu_node("a", 1), cpu_node("b", 1)])
    assert reason is not None and sentence(reason) == "can never fit: largest node has 1 CPU, you ask 2"
    assert reason_of(plan(Snapshot(0, (cpu_node("a", 1), cpu_node("b", 1)), pending=(request,))), "g") == reason


def test_case_24_never_enough_nodes_stays_queued_and_ends_at_its_deadline() -> None:
    snapshot = Snapshot(0, nodes(2), (hold("other", nodes(2), None),), (gang("g", 2, deadline_ms=HOUR),))
    assert plan(snapshot).expired == ()
    late = plan(replace(snapshot, now_ms=HOUR))
    assert late.expired == ("g",)
    assert reason_of(late, "g").code is ReasonCode.NO_CAPACITY


def test_case_25_twenty_short_gangs_follow_each_other_without_gaps() -> None:
    jobs = [Job(i, 0, 4, 10_000) for i in range(20)]
    waits = sorted(s.wait_ms for s in simulate(jobs, uniform(1, 4), Policy()).jobs)
    assert waits == [i * 10_000 for i in range(20)]


def test_case_26_equal_gangs_start_in_the_order_they_came() -> None:
    pending = tuple(gang(f"g{i:02}", 1, submitted_ms=i) for i in range(10))
    assert started(plan(Snapshot(10, nodes(10), pending=pending[::-1]))) == [r.request_id for r in pending]


def test_case_27_an_hour_in_the_queue_is_no_timeout() -> None:
    snapshot = Snapshot(HOUR, nodes(2), pending=(gang("g", 2, timeout_ms=MINUTE),))
    assert started(plan(snapshot)) == ["g"]


def test_case_28_the_first_node_is_kept_while_the_second_boots_and_nothing_is_ordered_twice() -> None:
    offer = Offer("cloud", node("template"), most=10, boot_ms=3 * MINUTE)
    first = plan(Snapshot(0, (), pending=(gang("g", 2),), offers=(offer,)))
    assert [p.count for p in first.provision] == [2]
    waiting = Snapshot(
        10 * MINUTE, nodes(1), pending=(gang("g", 2),), offers=(offer,), arrivals=(Arrival("cloud", 1, 12 * MINUTE, "g"),),
        rented=(Rented("node-00", 0),), reservations=first.reserve,
    )  # fmt: skip
    made = plan(waiting)
    assert (made.provision, made.release, made.starts) == ((), (), ())
    assert reason_of(made, "g").code is ReasonCode.PROVISIONING
    thief = plan(replace(waiting, pending=(*waiting.pending, gang("thief", 1, predicted_ms=HOUR), gang("quick", 1, predicted_ms=MINUTE))))
    assert started(thief) == ["quick"], "open only to who is done before the second node comes"


def test_case_30_min_containers_counts_nodes_in_whole_clusters() -> None:
    assert check_pool(Pool("fu-1", 4, min_nodes=6)) == "min_containers=6 counts nodes and must be a multiple of 4, the cluster's size"
    assert check_pool(Pool("fu-1", 4, min_nodes=8)) == ""


def test_case_31_an_evicted_gang_gives_its_quota_back_and_waits_again() -> None:
    fleet = nodes(4)
    index = FleetIndex.of(fleet, (hold("low", fleet, 9 * HOUR, workspace="ann"),))
    assert index.used == {"ann": 4}
    high = gang("high", 4, priority=1, workspace="ben")
    made = plan(Snapshot(0, pending=(high,), quotas=(Quota("ann", 4), Quota("ben", 4))), index=index)
    assert [e.holder_id for e in made.evict] == ["low"]
    after = index.apply([HoldEnded("low")])
    assert after.used == {}
    again = plan(Snapshot(1, pending=(gang("low", 4, workspace="ann"), high)), index=after)
    assert started(again) == ["high"]
    assert {w.request_id for w in again.waits} == {"low"}


def test_case_33_the_counts_equal_a_recount_after_adds_and_ends_in_any_order() -> None:
    fleet = nodes(6)
    index = FleetIndex.of(fleet)
    for i in range(50):
        one = hold(f"h{i % 3}", fleet[(i % 3) * 2 : (i % 3) * 2 + 2], i, workspace=f"w{i % 2}")
        put, end = HoldChanged(one), HoldEnded(one.holder_id)
        index = index.apply([end, put, HoldEnded("never-was"), end, put])
        index.recount()
    assert sum(index.used.values()) == 6


def test_case_50_a_draining_node_is_not_used_and_named_when_there_is_no_other() -> None:
    sick = replace(nodes(1)[0], state=NodeState.DRAINING, state_reason="gpu-health")
    retry = gang("g", 2, attempt=2, excluded_nodes=frozenset({"node-00"}))
    elsewhere = plan(Snapshot(0, (sick, *nodes(2, "ok")), pending=(retry,)))
    assert elsewhere.starts[0].node_ids == ("ok-00", "ok-01")
    alone = plan(Snapshot(0, (sick, *nodes(1, "ok")), pending=(retry,)))
    assert reason_of(alone, "g").code is ReasonCode.DRAINING
    assert sentence(reason_of(alone, "g")) == "network net-1: 1 of 2 nodes free; 1 draining (gpu-health)"


def test_case_9_gpus_have_a_quota_of_their_own_and_other_types_are_taken_while_there_is_any() -> None:
    fleet = nodes(4) + nodes(4, "a", gpu_type="A100", network="net-2")
    mine = hold("cu-1", fleet[:2], workspace="ann", gpu_type="H100", gpu_count=8)
    snapshot = Snapshot(0, fleet, (mine,), (gang("g", 2, "H100:8", workspace="ann"),), quotas=(Quota("ann", 8, gpus=(("H100", 24),)),))
    refused = reason_of(plan(snapshot), "g")
    assert refused.code is ReasonCode.QUOTA and sentence(refused) == "quota of ann: 16 of 24 H100 in use, this asks 16"
    assert started(plan(replace(snapshot, pending=(gang("g", 1, workspace="ann"), gang("h", 1, workspace="ann"))))) == ["g"]
    other = plan(replace(snapshot, pending=(gang("g", 2, "H100:8", "A100:8", workspace="ann"),)))
    assert other.starts[0].gpu_type == "A100"
    assert started(plan(replace(snapshot, quotas=(Quota("ben", 1),)))) == ["g"]


def test_case_9_idle_clusters_of_ones_own_do_not_use_up_the_quota() -> None:
    fleet = nodes(8)
    idle = hold("idle", fleet[:4], None, workspace="ann", warm=True)
    snapshot = Snapshot(0, fleet, (idle,), (gang("g", 4, workspace="ann"),), quotas=(Quota("ann", 4),))
    made = plan(snapshot)
    assert [e.holder_id for e in made.evict] == ["idle"] and reason_of(made, "g").code is ReasonCode.PREEMPTING
    assert started(plan(apply(snapshot, made))) == ["g"]
    busy = replace(snapshot, holds=(replace(idle, warm=False),))
    assert plan(busy).evict == () and reason_of(plan(busy), "g").code is ReasonCode.QUOTA
