"""The planner's first duties: all or nothing, one fabric, a reason with numbers for whoever waits."""

from phalanx.model.gpus import parse_gpu
from phalanx.model.plan import Ask, Hold, Node, NodeState, ReasonCode, Request, Snapshot, sentence
from phalanx.scheduler.fit import can_ever_fit
from phalanx.scheduler.plan import plan


def nodes(count: int, **facts: object) -> tuple[Node, ...]:
    base = {"gpu_type": "H100", "gpu_count": 8, "cpu_milli": 64_000, "memory_mib": 1 << 20, "network": "net-1"} | facts
    return tuple(Node(f"node-{i:03}", **base) for i in range(count))  # type: ignore[arg-type]


def gang(name: str, size: int, gpu: str = "H100:8", **more: object) -> Request:
    return Request(name, size, Ask(gpus=(parse_gpu(gpu),)), **more)  # type: ignore[arg-type]


def test_two_gangs_of_four_on_four_nodes_one_runs_and_the_other_holds_nothing() -> None:
    made = plan(Snapshot(0, nodes(4), pending=(gang("cu-1", 4), gang("cu-2", 4, submitted_ms=1))))
    assert [(s.request_id, s.node_ids) for s in made.starts] == [("cu-1", ("node-000", "node-001", "node-002", "node-003"))]
    assert [w.request_id for w in made.waits] == ["cu-2"]


def test_a_waiting_gang_is_told_who_holds_its_nodes() -> None:
    held = Hold("cu-7", ("node-000", "node-001"))
    made = plan(Snapshot(0, nodes(4), (held,), (gang("cu-8", 4),)))
    assert sentence(made.waits[0].reason) == "waiting for 4 nodes with 8 H100: 2 free, 2 held by cu-7"


def test_a_draining_node_is_named_with_its_cause() -> None:
    draining = Node("node-9", "H100", 8, 64_000, 1 << 20, network="net-2", state=NodeState.DRAINING, state_reason="gpu-health")
    fleet = (*nodes(3, network="net-2"), draining)
    reason = plan(Snapshot(0, fleet, pending=(gang("cu-8", 4),))).waits[0].reason
    assert reason.code is ReasonCode.DRAINING
    assert sentence(reason) == "network net-2: 3 of 4 nodes free; 1 draining (gpu-health)"


def test_an_ask_larger_than_every_node_can_never_fit() -> None:
    reason = can_ever_fit(Request("cu-1", 2, Ask(cpu_milli=2000)), [Node("a", cpu_milli=1000), Node("b", cpu_milli=1000)])
    assert reason is not None
    assert sentence(reason) == "can never fit: largest node has 1 CPU, you ask 2"


def test_half_nodes_are_refused_with_the_counts_there_are() -> None:
    reason = can_ever_fit(gang("cu-1", 2, "H100:4"), nodes(2))
    assert reason is not None
    assert "nodes with H100 have 8" in sentence(reason) and "use H100:8" in sentence(reason)


def test_a_simulated_node_takes_any_type_at_its_real_shape() -> None:
    fleet = nodes(2, gpu_type="any", simulated=True)
    for gpu in ("H100:8", "A10:4", "GB200:4", "B200+:8", "any:8"):
        assert plan(Snapshot(0, fleet, pending=(gang("cu-1", 2, gpu, rdma=True),))).starts, gpu
    assert can_ever_fit(gang("cu-1", 2, "A10:8"), fleet) is not None


def test_shares_pack_onto_one_node_and_leave_room_for_the_gang() -> None:
    shared = tuple(Request(f"ta-{i}", 1, Ask(whole=False, cpu_milli=125, memory_mib=128)) for i in range(10))
    made = plan(Snapshot(0, nodes(3), pending=(*shared, gang("zz", 2))))
    assert len({n for s in made.starts if s.request_id != "zz" for n in s.node_ids}) == 1
    assert "zz" in [s.request_id for s in made.starts]
