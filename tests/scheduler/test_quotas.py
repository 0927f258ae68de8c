"""GPUs of plain functions count, and who has the higher priority in a full queue stops the cheapest of a lower one, never in vain."""

from __future__ import annotations

from dataclasses import replace

from phalanx.model.gpus import parse_gpu
from phalanx.model.plan import NO_LIMIT, Plan, Quota, ReasonCode, Retention, Snapshot, sentence
from phalanx.scheduler.plan import plan
from tests.scheduler.builders import HOUR, MINUTE, apply, gang, hold, node, nodes, reason_of, share, started

ANN = Quota("ann", 4)
H100S = Quota("ann", NO_LIMIT, gpus=(("H100", 16),))


def stopped(made: Plan) -> list[str]:
    return [evict.holder_id for evict in made.evict]


# ---------------------------------------------------------------- GPUs of plain functions


def test_a_plain_functions_gpus_count_against_its_queues_quota() -> None:
    fleet = nodes(4)
    training = hold("cu-1", fleet[:1], workspace="ann", gpu_type="H100", gpu_count=8)
    notebook = hold("cu-2", fleet[1:2], workspace="ann", gpu_type="H100", gpu_count=4, whole=False)
    pending = (share("a", gpu="H100:2", workspace="ann"), share("b", gpu="H100:4", workspace="ann", submitted_ms=1))
    made = plan(Snapshot(0, fleet, (training, notebook), pending, quotas=(H100S,)))
    assert started(made) == ["a"]
    assert sentence(reason_of(made, "b")) == "quota of ann: 14 of 16 H100 in use, this asks 4"
    nobodys = plan(Snapshot(0, fleet, (training, notebook), (share("b", gpu="H100:4", workspace="ben"),), quotas=(H100S,)))
    assert started(nobodys) == ["b"], "another queue's"


def test_containers_of_plain_functions_use_up_what_a_cluster_may_have() -> None:
    fleet = nodes(4)
    notebook = hold("cu-2", fleet[:1], workspace="ann", gpu_type="H100", gpu_count=1, whole=False)
    refused = plan(Snapshot(0, fleet, (notebook,), (gang("g", 2, workspace="ann"),), quotas=(H100S,)))
    assert sentence(reason_of(refused, "g")) == "quota of ann: 1 of 16 H100 in use, this asks 16"


def test_no_quota_of_nodes_counts_a_container() -> None:
    fleet = nodes(2)
    full = hold("cu-1", fleet[:1], workspace="ann")
    assert started(plan(Snapshot(0, fleet, (full,), (share("a", gpu="H100:1", workspace="ann"),), quotas=(Quota("ann", 1),)))) == ["a"]


def test_a_plain_function_with_a_choice_takes_the_type_that_its_queue_has_left() -> None:
    fleet = (node("h", gpu_type="H100"), node("a", gpu_type="A100-80GB"))
    full = hold("cu-1", ("h",), workspace="ann", gpu_type="H100", gpu_count=4, whole=False)
    either = share("s", gpu="any:1", workspace="ann")
    either = replace(either, ask=replace(either.ask, gpus=(share("x", gpu="H100:1").ask.gpus + share("x", gpu="A100-80GB:1").ask.gpus)))
    made = plan(Snapshot(0, fleet, (full,), (either,), quotas=(Quota("ann", NO_LIMIT, gpus=(("H100", 4),)),)))
    assert made.starts[0].gpu_type == "A100-80GB"


def test_any_gpu_is_one_of_the_types_that_the_queue_has_left() -> None:
    fleet = (*nodes(2), node("a", gpu_type="A100-80GB", network="net-2"))
    asks = (gang("g", 2, "any:8", workspace="ann"), gang("h", 1, "any:8", workspace="ann", submitted_ms=1))
    made = plan(Snapshot(0, fleet, pending=asks, quotas=(Quota("ann", 9, gpus=(("H100", 8), ("A100-80GB", 8))),)))
    assert sentence(reason_of(made, "g")) == "quota of ann: 0 of 8 A100-80GB in use, this asks 16" and started(made) == ["h"]


def test_a_container_that_finds_its_place_at_second_look_keeps_to_what_the_quota_has_left_by_then() -> None:
    """It comes first and finds all nodes kept; then a later one uses up the type on the node that both could share."""
    fleet = (node("h"), node("a", gpu_type="A100", network="net-2"))
    either = share("p", gpu="H100:2", workspace="ann", priority=1, predicted_ms=20 * HOUR)
    either = replace(either, ask=replace(either.ask, gpus=(*either.ask.gpus, parse_gpu("A100:2"))))
    later = tuple(share(name, gpu=gpu, workspace="ann") for name, gpu in (("q", "H100:2"), ("r", "A100:2")))
    kept = (Retention("q", ("h",), 3 * HOUR), Retention("r", ("a",), 3 * HOUR))
    quotas = (Quota("ann", 9, gpus=(("H100", 2), ("A100", 8))),)
    made = plan(Snapshot(0, fleet, (), (either, *later), quotas=quotas, retentions=kept))
    assert {s.request_id: s.gpu_type for s in made.starts} == {"q": "H100", "r": "A100", "p": "A100"}


def test_an_idle_container_of_the_queue_makes_way_where_only_the_quota_is_missing_and_there_is_a_place() -> None:
    fleet = nodes(2)
    idle = hold("idle", fleet[:1], None, workspace="ann", gpu_type="H100", gpu_count=8, whole=False, warm=True)
    snapshot = Snapshot(0, fleet, (idle,), (share("s", gpu="H100:4", workspace="ann"),), quotas=(Quota("ann", 9, gpus=(("H100", 8),)),))
    made = plan(snapshot)
    assert stopped(made) == ["idle"] and reason_of(made, "s").code is ReasonCode.PREEMPTING
    assert started(plan(apply(snapshot, made))) == ["s"]
    busy = (hold("others", fleet[1:]), hold("busy", fleet[:1], whole=False, gpu_count=6))
    nowhere = plan(replace(snapshot, holds=(replace(idle, gpu_count=2), *busy), quotas=(Quota("ann", 9, gpus=(("H100", 4),)),)))
    assert stopped(nowhere) == [], "it would not start: four cards are free on no node"


# ---------------------------------------------------------------- higher priority in one's own queue


def test_a_working_cluster_of_lower_priority_makes_way_in_its_own_full_queue() -> None:
    fleet = nodes(8)
    low = hold("low", fleet[:4], 10 * HOUR, workspace="ann")
    snapshot = Snapshot(HOUR, fleet, (low,), (gang("g", 4, workspace="ann", priority=1),), quotas=(ANN,))
    made = plan(snapshot)
    assert stopped(made) == ["low"] and reason_of(made, "g").code is ReasonCode.PREEMPTING
    assert started(plan(apply(snapshot, made))) == ["g"]
    equal = plan(replace(snapshot, pending=(gang("g", 4, workspace="ann"),)))
    assert stopped(equal) == [] and reason_of(equal, "g").code is ReasonCode.QUOTA


def test_the_cheapest_of_the_queue_is_stopped_wherever_it_is_and_nobody_elses() -> None:
    """Two networks: there is room on the first, and the cheapest of ann's sits on the second. Ben's are cheaper still, and no use."""
    near, far = nodes(6, "near", network="net-1"), nodes(4, "far", network="net-2")
    dear = hold("dear", near[:2], 10 * HOUR, workspace="ann", since_ms=0)
    cheap = hold("cheap", far[:2], 10 * HOUR, workspace="ann", since_ms=HOUR - MINUTE)
    bens = hold("bens", far[2:], 10 * HOUR, workspace="ben", since_ms=HOUR)
    snapshot = Snapshot(HOUR, near + far, (dear, cheap, bens), (gang("g", 2, workspace="ann", priority=1),), quotas=(ANN,))
    made = plan(snapshot)
    assert stopped(made) == ["cheap"]
    assert started(plan(apply(snapshot, made))) == ["g"]


def test_nobody_of_the_queue_is_stopped_in_vain_or_for_a_quota_that_is_free_in_a_moment() -> None:
    fleet = nodes(4)
    low, others = hold("low", fleet[:2], 10 * HOUR, workspace="ann"), hold("others", fleet[2:], 10 * HOUR, workspace="ben", priority=5)
    full = Snapshot(HOUR, fleet, (low, others), (gang("g", 4, workspace="ann", priority=1),), quotas=(ANN,))
    assert stopped(plan(full)) == [], "four nodes would not come of it"
    more = Snapshot(HOUR, nodes(8), (hold("low", fleet, HOUR + 30_000, workspace="ann"),), full.pending, quotas=(ANN,))
    assert stopped(plan(more)) == [], "it ends within the minute that a stop would win"


def test_the_budget_and_the_time_to_itself_hold_in_ones_own_queue_too() -> None:
    fleet = nodes(8)
    low = hold("low", fleet[:4], 10 * HOUR, workspace="ann")
    snapshot = Snapshot(HOUR, fleet, (low,), (gang("g", 4, workspace="ann", priority=1, evictions=3),), quotas=(ANN,))
    assert stopped(plan(snapshot)) == []
    protected = replace(low, preemptible_after_ms=HOUR + MINUTE)
    fresh = replace(snapshot, holds=(protected,), pending=(gang("g", 4, workspace="ann", priority=1),))
    assert stopped(plan(fresh)) == [] and stopped(plan(replace(fresh, now_ms=HOUR + MINUTE))) == ["low"]


def test_who_borrows_does_not_stop_the_lenders_work_for_its_own_quota() -> None:
    """It would take it back: the two would stop each other in turn."""
    fleet = nodes(8)
    mine = hold("mine", fleet[:2], 10 * HOUR, workspace="ann", priority=5)
    lenders = hold("lenders", fleet[2:4], 10 * HOUR, workspace="ben")
    quotas = (Quota("ann", 2, "all", None), Quota("ben", 2, "all", None))
    made = plan(Snapshot(HOUR, fleet, (mine, lenders), (gang("g", 2, workspace="ann", priority=5),), quotas=quotas))
    assert stopped(made) == [] and reason_of(made, "g").code is ReasonCode.QUOTA


def test_a_container_of_lower_priority_gives_its_gpus_back_to_its_queue() -> None:
    fleet = nodes(4)
    notebook = hold("notebook", fleet[:1], 10 * HOUR, workspace="ann", gpu_type="H100", gpu_count=1, whole=False)
    snapshot = Snapshot(HOUR, fleet, (notebook,), (gang("g", 2, workspace="ann", priority=1),), quotas=(H100S,))
    made = plan(snapshot)
    assert stopped(made) == ["notebook"]
    assert started(plan(apply(snapshot, made))) == ["g"]


def test_a_victim_of_the_queue_that_is_still_ending_is_enough() -> None:
    near, far = nodes(4, "near", network="net-1"), nodes(4, "far", network="net-2")
    going = hold("going", far[:4], 10 * HOUR, workspace="ann", ending=True)
    low = hold("low", near[:2], 10 * HOUR, workspace="ann")
    snapshot = Snapshot(HOUR, near + far, (going, low), (gang("g", 2, workspace="ann", priority=1),), quotas=(Quota("ann", 6),))
    assert stopped(plan(snapshot)) == []
