"""Gangs over the whole control plane: all or nothing, both barriers, in step, first causes, over fake agents (cases.md C1, C3, C4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from modal_proto import api_pb2

from phalanx.model.cluster import Assignment, Member, MemberState, Phase
from phalanx.model.work import Call, CallState
from phalanx.protocol import agent_pb2 as pb
from tests.harness.callers import Caller, Failed
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import Died, FakeRank
from tests.harness.waiting import until

GPUS = "H100:8"
GONE = (MemberState.EXITED, MemberState.RELEASED)
MEANT_TO_RUN = (MemberState.IMPORTING, MemberState.READY)


def members(plane: ControlPlane) -> list[Member]:
    return list(plane.server.world[Member].values())


def running_sizes(plane: ControlPlane) -> list[int]:
    """How many ranks of each assignment may run user code: P0 says none or all."""
    counts: dict[int, int] = {}
    for member in members(plane):
        counts[member.assignment] = counts.get(member.assignment, 0) + (member.state in MEANT_TO_RUN)
    return list(counts.values())


def test_a_cluster_of_two_runs_and_rank_0s_value_comes_back(control_plane: ControlPlane, fleet: Any) -> None:
    fleet(2)
    caller = Caller(control_plane)
    assert caller.result(caller.call(caller.function(size=2, gpu=GPUS))) == 0


def test_case_1_two_calls_of_four_nodes_on_four_nodes_run_one_after_the_other(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)
    may_end = asyncio.Event()

    async def wait(rank: FakeRank, item: Any) -> int:
        await may_end.wait()
        return rank.prepare.rank

    nodes.program = wait
    caller = Caller(control_plane)
    functions = [caller.function(name, size=4, gpu=GPUS) for name in ("one", "two")]
    calls = [caller.call(function_id) for function_id in functions]
    until(lambda: len(nodes.ran) == 4)
    assert len({key[0] for key, _, _ in nodes.ran}) == 1
    assert len(control_plane.call(lambda: control_plane.server.planning.waiting())) == 1
    assert len({member.assignment for member in members(control_plane)}) == 1, "the other call holds no node"
    control_plane.call(may_end.set)
    assert [caller.result(call_id) for call_id in calls[:1]] == [0]
    # The first cluster would stay warm for its function; idle now, it is given up to the call that waits.
    assert caller.result(calls[1]) == 0
    assert set(running_sizes(control_plane)) <= {0, 4}


def test_case_2_three_free_nodes_start_nothing_of_a_call_of_four(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)
    control_plane.change(cordon, "node-3", "maintenance")
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=4, gpu=GPUS))
    until(lambda: control_plane.call(lambda: control_plane.server.planning.waiting()))
    (_, reason), = control_plane.call(lambda: control_plane.server.planning.waiting())
    assert reason.number("free") == 3 and reason.number("need") == 4
    assert nodes.starts("prepare") == [] and caller.outputs(call_id, 0) == []


def cordon(unit: Any, node_id: str, why: str) -> None:
    record = next(r for r in _nodes(unit) if r.node_id == node_id)
    record.cordoned = why
    unit.put(record)


def _nodes(unit: Any) -> list[Any]:
    from phalanx.model.node import NodeRecord

    return list(unit._world[NodeRecord].values())


def test_case_6_a_hundred_requests_on_one_node_all_finish(control_plane: ControlPlane, fleet: Any) -> None:
    fleet(1, gpu_type="", gpu_count=0)
    caller = Caller(control_plane)
    function_id = caller.function()
    calls = [caller.call(function_id) for _ in range(100)]
    assert [caller.result(call_id) for call_id in calls] == [0] * 100


def test_case_12_two_gangs_within_one_tick_get_disjoint_nodes(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(8)
    everybody = asyncio.Barrier(8)

    async def meet(rank: FakeRank, item: Any) -> int:
        await everybody.wait()      # passes only if both gangs run at once
        return rank.prepare.rank

    nodes.program = meet
    caller = Caller(control_plane)
    calls = [caller.call(caller.function(name, size=4, gpu=GPUS)) for name in ("one", "two")]
    assert [caller.result(call_id) for call_id in calls] == [0, 0]
    used = [frozenset(m.node_id for m in members(control_plane) if m.assignment == a) for a in control_plane.server.world[Assignment]]
    assert len(used) == 2 and not used[0] & used[1]


def test_case_58_addresses_are_the_same_list_on_every_rank_and_mine_is_at_my_rank(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)
    seen: dict[int, FakeRank] = {}

    async def look(rank: FakeRank, item: Any) -> int:
        seen[rank.prepare.rank] = rank
        return rank.prepare.rank

    async def late(rank: FakeRank) -> None:
        await asyncio.sleep(0.05 * (3 - rank.prepare.rank))   # rank 3 first, rank 0 last

    nodes.program, nodes.before_hello = look, late
    caller = Caller(control_plane)
    caller.result(caller.call(caller.function(size=4, gpu=GPUS)))
    assert len({tuple(rank.ips) for rank in seen.values()}) == 1 and len({tuple(rank.ipv4s) for rank in seen.values()}) == 1
    number = seen[0].key[0]
    own = {m.rank: (m.ipv6, m.ipv4) for m in members(control_plane) if m.assignment == number}
    assert all((rank.ips[r], rank.ipv4s[r]) == own[r] for r, rank in seen.items())


def test_case_60_no_rank_imports_before_the_last_is_up(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)
    last_may_come = asyncio.Event()
    imported: list[int] = []

    async def hold_rank_0(rank: FakeRank) -> None:
        if rank.prepare.rank == 0:
            await last_may_come.wait()

    async def note(rank: FakeRank) -> None:
        imported.append(rank.prepare.rank)

    nodes.before_hello, nodes.on_import = hold_rank_0, note
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=4, gpu=GPUS))
    until(lambda: [m.state for m in members(control_plane)].count(MemberState.HELLO) == 3)
    assert imported == []
    control_plane.call(last_may_come.set)
    assert caller.result(call_id) == 0 and sorted(imported) == [0, 1, 2, 3]


def test_case_8_a_refused_start_holds_nothing_and_is_tried_elsewhere(
    control_plane: ControlPlane, fleet: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = fleet(3)
    nodes.refuse = lambda p: pb.Refusal(code="disk", sentence="no space: need 10 GiB, have 1 GiB") if p.node_id == "node-0" else None
    caller = Caller(control_plane)
    assert caller.result(caller.call(caller.function(size=2, gpu=GPUS))) == 0
    ended = [a for a in control_plane.server.world[Assignment].values() if a.verdict and a.verdict.cause == "refused"]
    assert len(ended) == 1 and "10 GiB" in ended[0].verdict.sentence
    assert caplog.text.count("10 GiB") == 1, "a refused start counts once, not once a rank"
    assert {m.node_id for m in members(control_plane) if m.state in MEANT_TO_RUN} == {"node-1", "node-2"}


def test_case_37_rank_2_exits_1_and_the_error_names_it(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)

    async def one_dies(rank: FakeRank, item: Any) -> None:
        if rank.prepare.rank == 2:
            raise Died(code=1)
        await asyncio.sleep(3600)

    nodes.program = one_dies
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=4, gpu=GPUS))
    with pytest.raises(Failed, match=r"rank 2 on node node-\d exited with code 1"):
        caller.result(call_id)
    until(lambda: all(m.state == MemberState.RELEASED for m in members(control_plane)))


def test_case_96_out_of_memory_is_told_from_a_kill(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    death = Died(signal=9, oom=True)

    async def dies(rank: FakeRank, item: Any) -> None:
        if rank.prepare.rank == 1:
            raise death
        await asyncio.sleep(3600)

    nodes.program = dies
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS)
    with pytest.raises(Failed, match="rank 1 .* ran out of memory: limit 128 MiB, peak 128 MiB"):
        caller.result(caller.call(function_id))
    death.oom = False
    with pytest.raises(Failed, match="rank 1 .* killed by signal 9"):
        caller.result(caller.call(function_id))


def test_an_exception_reaches_the_caller_as_itself_and_stops_the_others(control_plane: ControlPlane, fleet: Any) -> None:
    import pickle

    nodes = fleet(2)

    async def raises(rank: FakeRank, item: Any) -> None:
        if rank.prepare.rank == 1:
            raise ValueError("wrong shape (3, 4)")
        await asyncio.sleep(3600)

    nodes.program = raises
    caller = Caller(control_plane)
    with pytest.raises(Failed) as failed:
        caller.result(caller.call(caller.function(size=2, gpu=GPUS)))
    error = pickle.loads(failed.value.data)
    assert isinstance(error, ValueError) and error.args == ("wrong shape (3, 4)",)
    assert [stop.rank for stop in nodes.starts("stop")] == [0]


def test_case_81_cancelling_one_call_leaves_nineteen(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2, gpu_type="", gpu_count=0)
    may_end = asyncio.Event()

    async def wait(rank: FakeRank, item: Any) -> str:
        await may_end.wait()
        return "done"

    nodes.program = wait
    caller = Caller(control_plane)
    function_id = caller.function()
    calls = [caller.call(function_id) for _ in range(20)]
    until(lambda: len(nodes.ran) == 20)
    control_plane.rpc("FunctionCallCancel", api_pb2.FunctionCallCancelRequest(function_call_id=calls[7], terminate_containers=True))
    control_plane.call(may_end.set)
    values = [caller.result(call_id) for call_id in calls if call_id != calls[7]]
    assert values == ["done"] * 19
    assert caller.outputs(calls[7])[0].result.status == api_pb2.GenericResult.GENERIC_STATUS_TERMINATED


def test_case_82_a_call_is_cancelling_until_every_rank_is_confirmed_dead(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.deaf_to_stop = True

    async def wait(rank: FakeRank, item: Any) -> None:
        await asyncio.sleep(3600)

    nodes.program = wait
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: len(nodes.ran) == 2)
    control_plane.rpc("FunctionCallCancel", api_pb2.FunctionCallCancelRequest(function_call_id=call_id, terminate_containers=True))
    until(lambda: len(nodes.starts("stop")) == 2)
    for rank in list(nodes.ranks.values()):
        assert control_plane.server.world[Call][call_id].state == CallState.CANCELLING
        assert caller.outputs(call_id, 0) == []
        control_plane.call(rank.task.cancel)
        until(lambda rank=rank: next(m for m in members(control_plane) if m.rank == rank.prepare.rank).state in GONE)
    with pytest.raises(Failed, match="cancelled"):
        caller.result(call_id)
    assert control_plane.server.world[Call][call_id].state == CallState.DONE


def test_a_cluster_whose_peers_do_not_reach_each_other_runs_nothing(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    once = [["fdaa::bad"]]
    nodes.unreachable = lambda check: once.pop() if once else []
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: any(a.phase == Phase.ENDED for a in control_plane.server.world[Assignment].values()))
    assert nodes.ran == [] and caller.outputs(call_id, 0) == []


def test_what_remains_of_a_container_takes_its_node_out_of_service(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.remains = lambda release: "process 41 in state D" if release.rank == 1 else ""
    caller = Caller(control_plane)
    caller.result(caller.call(caller.function(size=2, gpu=GPUS)))
    caller.stop()
    until(lambda: any("process 41" in r.unschedulable for r in control_plane.server.world[_node_record()].values()))


def _node_record() -> type:
    from phalanx.model.node import NodeRecord

    return NodeRecord


def test_a_retried_call_with_the_same_key_is_one_call(control_plane: ControlPlane, fleet: Any) -> None:
    fleet(2)
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS)
    assert len({caller.call(function_id, key="same") for _ in range(4)}) == 1


def test_a_map_of_fifty_inputs_comes_back_whole(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2, gpu_type="", gpu_count=0)

    async def index(rank: FakeRank, item: Any) -> int:
        import pickle

        (n,), _ = pickle.loads(item.input.args)
        return int(n) * 2

    nodes.program = index
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(), inputs=50)
    assert caller.results(call_id, 50) == [2 * n for n in range(50)]


def test_the_server_is_killed_under_a_running_cluster_and_the_result_arrives(control_plane: ControlPlane, fleet: Any) -> None:
    """The agent and its ranks go on, come back, and the call ends as if nothing had been."""
    nodes = fleet(2)
    may_end = asyncio.Event()

    async def wait(rank: FakeRank, item: Any) -> str:
        await may_end.wait()
        return "survived"

    nodes.program = wait
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: len(nodes.ran) == 2)
    before = {m.task_id for m in members(control_plane)}
    nodes.lose_agent()
    nodes.start()
    control_plane.call(may_end.set)
    assert caller.result(call_id) == "survived"
    assert {m.task_id for m in members(control_plane)} == before


def test_a_function_may_have_a_finish_window_of_its_own(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)

    async def rank_1_loops(rank: FakeRank, item: Any) -> int:
        if rank.prepare.rank == 1:
            await asyncio.sleep(3600)
        return rank.prepare.rank

    nodes.program = rank_1_loops
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS, experimental_options={"finish_window": "0.05"})
    assert caller.result(caller.call(function_id), timeout_s=5) == 0
    until(lambda: all(a.phase == Phase.ENDED for a in control_plane.server.world[Assignment].values()))
    assert [a.verdict.cause for a in control_plane.server.world[Assignment].values()] == ["released"]
