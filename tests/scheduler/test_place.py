"""Where gangs land: GPU types, fabrics, racks, blocks, constraints, and what plain functions leave free."""

from __future__ import annotations

import pytest

from phalanx.model.gpus import GpuChoice, accepted_types, parse_gpu
from phalanx.model.plan import Ask, Node, ReasonCode, Request, Reservation, Retention, Snapshot, Where, sentence
from phalanx.scheduler.choose import choose
from phalanx.scheduler.fit import can_ever_fit
from phalanx.scheduler.index import Domain
from phalanx.scheduler.plan import plan
from tests.scheduler.builders import HOUR, MINUTE, check, cpu_node, domains, gang, hold, node, nodes, reason_of, share, started


@pytest.mark.parametrize(("text", "choice"), [
    ("h100:8", GpuChoice("H100", 8)), ("H100!:8", GpuChoice("H100", 8, True)), ("a10g:4", GpuChoice("A10", 4)),
    ("any", GpuChoice("any", 1)), ("A100-80GB:8", GpuChoice("A100-80GB", 8)), ("B200+:8", GpuChoice("B200+", 8)),
])  # fmt: skip
def test_gpu_forms(text: str, choice: GpuChoice) -> None:
    assert parse_gpu(text) == choice


@pytest.mark.parametrize("text", ["H101", "H100:0", "H100:x", ""])
def test_gpu_forms_that_are_refused_name_the_value(text: str) -> None:
    with pytest.raises(ValueError, match="gpu="):
        parse_gpu(text)


@pytest.mark.parametrize(("asked", "have", "runs"), [
    ("H100:8", "H200", True), ("H100!:8", "H200", False), ("A100:8", "A100-80GB", True), ("A100-40GB:8", "A100-80GB", False),
    ("B200+:8", "B300", True), ("B200:8", "B300", False), ("any:8", "L40S", True), ("H200:8", "H100", False),
])  # fmt: skip
def test_upgrades(asked: str, have: str, runs: bool) -> None:
    made = plan(Snapshot(0, nodes(2, gpu_type=have), pending=(gang("g", 2, asked),)))
    assert bool(made.starts) == runs
    assert accepted_types(parse_gpu(asked))


def test_a_preference_list_is_tried_in_order_and_types_are_never_mixed() -> None:
    fleet = nodes(2, "a", gpu_type="A100-80GB") + nodes(1, "h", gpu_type="H100")
    assert plan(Snapshot(0, fleet, pending=(gang("g", 2, "H100:8", "A100:8"),))).starts[0].gpu_type == "A100-80GB"
    assert plan(Snapshot(0, fleet, pending=(gang("g", 1, "H100:8", "A100:8"),))).starts[0].gpu_type == "H100"
    assert plan(Snapshot(0, fleet[:1] + fleet[2:], pending=(gang("g", 2, "any:8"),))).starts == ()


def test_h100_gangs_take_h100_before_h200() -> None:
    fleet = nodes(2, "x", gpu_type="H200", network="net-2") + nodes(4, "h")
    assert plan(Snapshot(0, fleet, pending=(gang("g", 2),))).starts[0].gpu_type == "H100"


def test_the_tightest_fabric_is_taken_and_left_whole_for_the_next() -> None:
    fleet = nodes(8, "a", network="net-1") + nodes(4, "b", network="net-2")
    snapshot = Snapshot(0, fleet, pending=(gang("small", 4), gang("large", 8, submitted_ms=1)))
    made = plan(snapshot)
    check(snapshot, made)
    assert started(made) == ["small", "large"]


def test_a_gang_stays_in_one_rack_where_one_has_room_and_ranks_follow_the_racks() -> None:
    fleet = tuple(node(f"r{r}-{i}", rack=f"rack{r}") for r in range(3) for i in range(4))
    held = hold("x", ("r0-0", "r0-1", "r1-0"))
    two = plan(Snapshot(0, fleet, (held,), (gang("g", 2),))).starts[0]
    assert two.node_ids == ("r0-2", "r0-3"), "the rack with just enough"
    six = plan(Snapshot(0, fleet, (held,), (gang("g", 6),))).starts[0]
    assert six.node_ids == ("r0-2", "r0-3", "r2-0", "r2-1", "r2-2", "r2-3"), "two racks, not three"


def test_blocks_of_fabric_size_share_a_domain_and_stand_together_in_rank() -> None:
    fleet = domains(3, 6)
    snapshot = Snapshot(0, fleet, (hold("x", ("net-1-d0-00", "net-1-d1-00")),), (gang("g", 12, fabric_size=4),))
    made = plan(snapshot)
    check(snapshot, made)
    assert len(made.starts[0].node_ids) == 12


def test_choose_takes_nothing_when_there_is_not_enough() -> None:
    assert choose({Domain("b", "r", ""): ["a", "b"]}, 3) == ()
    assert choose({Domain("b", "r", ""): ["a", "b"]}, 2, 2) == (), "no NVLink domain, no block"


@pytest.mark.parametrize(("where", "facts", "fits"), [
    (Where(regions=("us",)), {"region": "us-east"}, True), (Where(regions=("us-west",)), {"region": "us-east"}, False),
    (Where(clouds=("aws",)), {"cloud": "gcp"}, False), (Where(zones=("a", "b")), {"zone": "b"}, True),
    (Where(instance_types=("p5",)), {"instance_type": "p4"}, False), (Where(efa_disabled=True), {"efa": True}, False),
])  # fmt: skip
def test_places(where: Where, facts: dict[str, object], fits: bool) -> None:
    made = plan(Snapshot(0, nodes(2, **facts), pending=(gang("g", 2, where=where),)))
    assert bool(made.starts) == fits
    assert fits or reason_of(made, "g").code is ReasonCode.IMPOSSIBLE


def test_rdma_needs_nodes_that_have_it_or_pretend() -> None:
    assert not plan(Snapshot(0, nodes(2, rdma=False), pending=(gang("g", 2, rdma=True),))).starts
    assert plan(Snapshot(0, nodes(2, rdma=False, simulated=True), pending=(gang("g", 2, rdma=True),))).starts


def test_memory_and_cpu_of_the_node_must_be_enough_for_a_whole_ask() -> None:
    fleet = (*nodes(2, "small", memory_mib=1000), *nodes(2, "large", memory_mib=9000))
    request = gang("g", 2)
    from dataclasses import replace

    made = plan(Snapshot(0, fleet, pending=(replace(request, ask=replace(request.ask, memory_mib=5000)),)))
    assert made.starts[0].node_ids == ("large-00", "large-01")


def test_more_nodes_than_one_network_has_is_refused_with_the_number() -> None:
    fleet = nodes(4, "a", network="net-1") + nodes(3, "b", network="net-2")
    reason = can_ever_fit(gang("g", 5), fleet)
    assert reason is not None
    assert sentence(reason) == "can never fit: you ask 5 nodes with 8 H100 on one network, this fleet has at most 4"
    assert can_ever_fit(gang("g", 4), fleet) is None


def test_blocks_that_do_not_divide_the_gang_are_refused() -> None:
    reason = can_ever_fit(gang("g", 6, fabric_size=4), domains(2, 8))
    assert reason is not None
    assert sentence(reason) == "can never fit: fabric_size=4 must divide the cluster's size, 6"
    assert reason_of(plan(Snapshot(0, domains(2, 8), pending=(gang("g", 6, fabric_size=4),))), "g") == reason


def test_nodes_that_are_down_count_for_what_can_ever_fit() -> None:
    from dataclasses import replace

    from phalanx.model.plan import NodeState

    fleet = tuple(replace(n, state=NodeState.DOWN) for n in nodes(4))
    assert can_ever_fit(gang("g", 4), fleet) is None


def test_containers_pack_onto_few_nodes_and_share_gpus() -> None:
    many = tuple(share(f"t{i:02}", 2, gpu="H100:2") for i in range(6))
    snapshot = Snapshot(0, nodes(4), pending=many)
    made = plan(snapshot)
    check(snapshot, made)
    assert len({n for s in made.starts for n in s.node_ids}) == 2, "4 of 2 GPUs each fill a node"


def test_containers_do_not_sit_down_on_nodes_that_a_promise_needs() -> None:
    fleet = nodes(3)
    busy = hold("cu-1", fleet[:1], HOUR)
    big = gang("big", 3, submitted_ms=-HOUR)
    long, short = share("long", predicted_ms=2 * HOUR), share("short", predicted_ms=MINUTE)
    made = plan(Snapshot(0, fleet, (busy,), (big, long, short)))
    assert "short" in started(made) and "long" not in started(made)
    assert sentence(reason_of(made, "long")).endswith("kept for big which starts first")


def test_a_container_that_outlives_the_others_does_not_hold_up_a_promise() -> None:
    fleet = nodes(2)
    there = hold("ta-1", fleet[:1], HOUR, whole=False, cpu_milli=1000, memory_mib=128)
    busy = hold("cu-1", fleet[1:], HOUR)
    pending = (gang("big", 2, submitted_ms=-HOUR), share("long", predicted_ms=9 * HOUR), share("short", predicted_ms=MINUTE))
    made = plan(Snapshot(0, fleet, (there, busy), pending))
    assert started(made) == ["short"]


def test_no_room_for_a_container_is_told_in_containers() -> None:
    made = plan(Snapshot(0, (cpu_node("c", 1),), (hold("ta", ("c",), whole=False, cpu_milli=1000, memory_mib=10),), (share("t"),)))
    assert sentence(reason_of(made, "t")) == "waiting for room for 1 container with 1 CPU, 128 MiB: 0 nodes free, 1 shared"


def test_kept_nodes_are_for_their_gang_and_for_whoever_is_done_in_time() -> None:
    fleet = nodes(2)
    kept = (Retention("owner", ("node-00", "node-01"), 2 * MINUTE),)
    quick, slow = gang("quick", 1, predicted_ms=MINUTE), gang("slow", 1, predicted_ms=HOUR)
    made = plan(Snapshot(0, fleet, pending=(quick, slow), retentions=kept))
    assert started(made) == ["quick"]
    assert reason_of(made, "slow").code is ReasonCode.RETAINED
    assert started(plan(Snapshot(0, fleet, pending=(slow, gang("owner", 2)), retentions=kept))) == ["owner"]


@pytest.mark.parametrize("quick", [gang("quick", 1, predicted_ms=5 * MINUTE), share("quick")])
def test_kept_nodes_are_lent_only_until_the_date_that_their_gang_was_promised(quick: Request) -> None:
    fleet = nodes(3)
    kept = (Retention("owner", ("node-01", "node-02"), HOUR),)
    soon, later = hold("cu-1", fleet[:1], MINUTE), hold("cu-1", fleet[:1], 6 * MINUTE)
    assert started(plan(Snapshot(0, fleet, (soon,), (gang("owner", 3), quick), retentions=kept))) == []
    assert started(plan(Snapshot(0, fleet, (later,), (gang("owner", 3), quick), retentions=kept))) == ["quick"]


def test_a_promise_is_kept_against_a_younger_gang_that_scores_higher() -> None:
    fleet = nodes(4)
    busy = hold("cu-1", fleet[:2], HOUR)
    promise = (Reservation("old", "///net-1", HOUR, 4),)
    made = plan(Snapshot(0, fleet, (busy,), (gang("old", 4), gang("new", 4, submitted_ms=-9 * HOUR)), reservations=promise))
    assert [r.request_id for r in made.reserve] == ["old"]


def test_unknown_ends_give_no_date() -> None:
    made = plan(Snapshot(0, nodes(2), (hold("cu-1", nodes(2), None),), (gang("g", 2),)))
    assert reason_of(made, "g").earliest_start_ms is None
    assert made.reserve == ()


def test_cpu_clusters_leave_gpu_nodes_to_those_who_ask_for_gpus() -> None:
    from phalanx.model.plan import Ask, Request

    fleet: tuple[Node, ...] = (*nodes(2), cpu_node("c0"), cpu_node("c1"))
    assert plan(Snapshot(0, fleet, pending=(Request("g", 2, Ask(cpu_milli=1000)),))).starts[0].node_ids == ("c0", "c1")


def test_plain_functions_without_gpus_fill_the_node_that_is_for_them_before_one_with_gpus() -> None:
    spare = cpu_node("spare", cpus=2, shared_only=True)
    fleet = (*nodes(2), spare)
    busy = hold("busy", fleet[:1], whole=False, cpu_milli=1000)
    asked = tuple(share(f"s{i}", cpus=1, submitted_ms=i) for i in range(3))
    snapshot = Snapshot(0, fleet, holds=(busy,), pending=asked)
    made = plan(snapshot)
    check(snapshot, made)
    assert {start.request_id: start.node_ids for start in made.starts} == {"s0": ("spare",), "s1": ("spare",), "s2": ("node-00",)}


def test_a_cluster_that_has_every_other_node_calls_a_plain_function() -> None:
    fleet = (*nodes(2), cpu_node("spare", cpus=2, shared_only=True))
    cluster = hold("c", fleet[:2])
    snapshot = Snapshot(0, fleet, holds=(cluster,), pending=(share("helper"),))
    made = plan(snapshot)
    check(snapshot, made)
    assert started(made) == ["helper"]
    helper = hold("helper", fleet[2:], whole=False, cpu_milli=1000)
    waits = plan(Snapshot(0, fleet, holds=(cluster, helper), pending=(share("another", cpus=2),)))
    numbers = dict(reason_of(waits, "another").numbers)
    assert (numbers["shared"], numbers["held"]) == (1, 2)


def test_no_cluster_gets_a_node_for_plain_functions() -> None:
    fleet = (*nodes(2), *(cpu_node(f"spare-{i}", shared_only=True) for i in range(3)))
    without_gpus = Request("g", 3, Ask())
    assert plan(Snapshot(0, fleet, pending=(without_gpus,))).starts == ()
    refusal = can_ever_fit(without_gpus, fleet)
    assert refusal is not None and "this fleet has at most 2" in sentence(refusal)
    assert started(plan(Snapshot(0, fleet, pending=(Request("g", 2, Ask()),)))) == ["g"]
