"""Stops and cancellations reach the whole cluster and nobody else; ends are told once (cases.md C2, C3, C6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from modal_proto import api_pb2

from phalanx.core import events as ev
from phalanx.model.app import App, AppState
from phalanx.model.cluster import Assignment, Member, MemberState, Phase
from phalanx.model.work import Call, CallState, Input, Output
from tests.harness.callers import Caller, Failed
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import Cancelled, Died, FakeFleet, FakeRank
from tests.harness.waiting import until

GPUS = "H100:8"
TERMINATED = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED


async def work_on(rank: FakeRank, item: Any) -> None:
    await asyncio.sleep(3600)


async def first_attempt_waits(rank: FakeRank, item: Any) -> int:
    if item.retry_count == 0:
        await asyncio.sleep(3600)
    return int(item.retry_count)


def assignments(plane: ControlPlane) -> list[Assignment]:
    return sorted(plane.server.world[Assignment].values(), key=lambda assignment: assignment.assignment)


def task_of(plane: ControlPlane, assignment: int, rank: int) -> str:
    return str(plane.server.world[Member][assignment, rank].task_id)


def all_over(plane: ControlPlane) -> bool:
    return all(assignment.phase == Phase.ENDED for assignment in assignments(plane))


def test_a_cancellation_reaches_every_rank_and_the_cluster_takes_the_next_input(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    told: list[tuple[int, list[str]]] = []

    async def until_cancelled(rank: FakeRank, item: Any) -> int:
        if len(nodes.ran) > 2:
            return rank.prepare.rank
        told.append((rank.prepare.rank, await rank.cancelled()))
        raise Cancelled

    nodes.program = until_cancelled
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS, retry_policy=api_pb2.FunctionRetryPolicy(retries=3, initial_delay_ms=1000))
    call_id = caller.call(function_id)
    until(lambda: len(nodes.ran) == 2)
    caller.cancel(call_id)
    with pytest.raises(Failed) as failed:
        caller.result(call_id)
    assert failed.value.status == TERMINATED and control_plane.server.world[Call][call_id].state == CallState.DONE
    (input_id,) = [item.input_id for item in control_plane.server.world[Input].values()]
    assert sorted(told) == [(0, [input_id]), (1, [input_id])]
    assert caller.result(caller.call(function_id)) == 0
    assert len(assignments(control_plane)) == 1 and nodes.starts("stop") == []


def test_a_stopped_container_stops_its_cluster_and_the_input_runs_again_at_nobodys_cost(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)
    nodes.program = first_attempt_waits
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS)
    calls = [caller.call(function_id) for _ in range(2)]
    until(lambda: len(nodes.ran) == 4)
    stopped, other = (assignment.assignment for assignment in assignments(control_plane))
    (input_id,) = [item.input_id for item in control_plane.server.world[Input].values() if item.assignment == stopped]
    control_plane.rpc("ContainerStop", api_pb2.ContainerStopRequest(task_id=task_of(control_plane, stopped, 1)))
    call_id = control_plane.server.world[Input][input_id].call_id
    assert caller.result(call_id) == 1
    again = control_plane.server.world[Input][input_id]
    assert (again.attempt, again.user_failures, again.infra_failures) == (2, 0, 0)
    assert sorted((stop.assignment, stop.rank) for stop in nodes.starts("stop")) == [(stopped, 0), (stopped, 1)]
    assert control_plane.server.world[Assignment][other].phase == Phase.RUNNING
    caller.cancel(next(other_call for other_call in calls if other_call != call_id))


def test_a_graceful_stop_lets_the_cluster_finish_and_leave(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    may_end = asyncio.Event()

    async def wait(rank: FakeRank, item: Any) -> int:
        await may_end.wait()
        return rank.prepare.rank

    nodes.program = wait
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: len(nodes.ran) == 2)
    number = assignments(control_plane)[0].assignment
    request = api_pb2.ContainerStopRequest(task_id=task_of(control_plane, number, 1), graceful=True)
    control_plane.rpc("ContainerStop", request)
    control_plane.call(may_end.set)
    assert caller.result(call_id) == 0
    until(lambda: all_over(control_plane))
    assert nodes.starts("stop") == [] and len(nodes.ran) == 2


def test_a_rank_that_wants_no_more_inputs_takes_its_whole_cluster_along(control_plane: ControlPlane, fleet: Any) -> None:
    """modal.experimental.stop_fetching_inputs() on one rank: the input ends well, and the next has a new cluster."""
    nodes = fleet(2)

    async def last_input(rank: FakeRank, item: Any) -> int:
        if rank.prepare.rank == 1:
            await rank.rpc("ContainerStop", api_pb2.ContainerStopRequest(task_id=rank.prepare.task_id))
        return rank.prepare.assignment

    nodes.program = last_input
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS)
    first, second = (caller.result(caller.call(function_id)) for _ in range(2))
    assert first != second
    assert nodes.starts("stop") == []


def test_a_client_that_is_gone_takes_its_clusters_along(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.program = work_on
    caller = Caller(control_plane)
    caller.app_id = control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(app_state=api_pb2.APP_STATE_EPHEMERAL)).app_id
    call_id = caller.call(caller.function(size=2, gpu=GPUS, retry_policy=api_pb2.FunctionRetryPolicy(retries=3, initial_delay_ms=1000)))
    until(lambda: len(nodes.ran) == 2)
    control_plane.advance(81_000)
    with pytest.raises(Failed, match="was not heard of for"):
        caller.result(call_id)
    assert sorted((stop.rank, stop.signal) for stop in nodes.starts("stop")) == [(0, 2), (1, 2)]
    until(lambda: all_over(control_plane))
    control_plane.advance(5_001)
    assert control_plane.server.world[App][caller.app_id].state == AppState.STOPPED


def test_case_42_ranks_that_end_at_different_times_are_one_attempt(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)
    order = [asyncio.Event() for _ in range(5)]

    async def one_after_the_other(rank: FakeRank, item: Any) -> int:
        await order[rank.prepare.rank].wait()
        order[rank.prepare.rank + 1].set()
        return rank.prepare.rank

    nodes.program = one_after_the_other
    order[0].set()
    caller = Caller(control_plane)
    assert caller.result(caller.call(caller.function(size=4, gpu=GPUS, single_use_containers=True))) == 0
    until(lambda: all_over(control_plane))
    assert [len(assignments(control_plane)), len(nodes.starts())] == [1, 4]
    assert {rank.exit_code for rank in control_plane.server.world[Member].values()} == {0} and nodes.starts("stop") == []


def test_case_43_a_rank_never_starts_again_alone(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(3)

    async def one_dies_once(rank: FakeRank, item: Any) -> int:
        if item.retry_count == 0:
            if rank.prepare.rank == 1:
                raise Died(code=9)
            await asyncio.sleep(3600)
        return int(item.retry_count)

    nodes.program = one_dies_once
    caller = Caller(control_plane)
    retries = api_pb2.FunctionRetryPolicy(retries=1, initial_delay_ms=1000, backoff_coefficient=1.0, max_delay_ms=60_000)
    assert caller.result(caller.call(caller.function(size=3, gpu=GPUS, retry_policy=retries))) == 1
    first, second = (assignment.assignment for assignment in assignments(control_plane))
    assert [(start.assignment, start.rank) for start in nodes.starts()] == [(number, r) for number in (first, second) for r in range(3)]


def test_case_44_a_late_word_of_the_old_attempt_changes_nothing(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.program = first_attempt_waits
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS)
    call_id = caller.call(function_id)
    until(lambda: len(nodes.ran) == 2)
    number = assignments(control_plane)[0].assignment
    gangs = control_plane.server.gangs
    control_plane.change(gangs.dispatch, number, ev.NodeLost(1, "node-1 is gone"))
    until(lambda: number not in gangs.running)
    control_plane.advance(31_000)
    assert caller.result(call_id) == 1
    assert control_plane.change(gangs.dispatch, number, ev.Exited(1, 1, code=1)) is False
    (item,) = control_plane.server.world[Input].values()
    assert (item.attempt, len(assignments(control_plane))) == (2, 2)


def test_case_88_a_finish_that_is_said_again_is_decided_once(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(1)

    async def say_it_again(rank: FakeRank, item: Any) -> str:
        result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS, data=b"\x80\x04K\x07.")
        put = api_pb2.FunctionPutOutputsItem(input_id=item.input_id, result=result, data_format=api_pb2.DATA_FORMAT_PICKLE)
        for key in ("first", "first", "second"):
            await rank.rpc("FunctionPutOutputs", api_pb2.FunctionPutOutputsRequest(outputs=[put]), key=key)
        return "too late"

    nodes.program = say_it_again
    caller = Caller(control_plane)
    call_id = caller.call(caller.function())
    assert caller.result(call_id) == 7
    until(lambda: len(nodes.ran) == 1)
    assert caller.result(caller.call(caller.function("other"))) == 7
    call = control_plane.server.world[Call][call_id]
    outputs = [output for output in control_plane.server.world[Output].values() if output.call_id == call_id]
    assert (call.num_outputs, call.state, len(outputs)) == (1, CallState.DONE, 1)


def test_case_36_nodes_are_held_exactly_as_long_as_the_containers_are_there(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    held: list[Any] = []
    nodes._release = held.append
    caller = Caller(control_plane)
    caller.result(caller.call(caller.function(size=2, gpu=GPUS)))
    caller.stop()
    until(lambda: len(held) == 2)
    assert {member.state for member in control_plane.server.world[Member].values()} == {MemberState.EXITED}
    other = Caller(control_plane, "other")
    call_id = other.call(other.function(size=2, gpu=GPUS))
    until(lambda: control_plane.call(control_plane.server.planning.waiting))
    assert len(assignments(control_plane)) == 1
    del nodes._release
    for release in held:
        control_plane.call(nodes._release, release)
    assert other.result(call_id) == 0


def test_a_generators_second_attempt_goes_on_where_the_caller_is(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)

    async def generate(rank: FakeRank, item: Any) -> str:
        for index in range(1, 3 if item.retry_count == 0 else 5):
            chunk = api_pb2.DataChunk(index=index, data=f"{index} of attempt {item.retry_count + 1}".encode())
            await rank.rpc("FunctionCallPutDataOut", api_pb2.FunctionCallPutDataRequest(data_chunks=[chunk], attempt_token=item.input_id))
        if item.retry_count == 0:
            await asyncio.sleep(3600)
        return "done"

    nodes.program = generate
    caller = Caller(control_plane)
    call_id = caller.call(caller.function())
    calls, gangs = control_plane.server.calls, control_plane.server.gangs
    until(lambda: len(calls.chunks_after(call_id, 0)) == 2)
    control_plane.change(gangs.dispatch, next(iter(gangs.running)), ev.NodeLost(0, "its node is gone"))
    assert caller.result(call_id) == "done"
    said = [api_pb2.DataChunk.FromString(chunk.payload) for chunk in calls.chunks_after(call_id, 0)]
    assert [chunk.index for chunk in said] == [1, 2, 3, 4]
    assert [chunk.data.decode()[-1] for chunk in said] == ["1", "1", "2", "2"]
    batches = control_plane.rpc("AppFetchLogs", api_pb2.AppFetchLogsRequest(app_id=caller.app_id, limit=100)).batches
    lines = [item.data for batch in batches for item in batch.items]
    assert any("its caller has 2 pieces of the generator, and gets the new attempt's from piece 3 on" in line for line in lines)


def test_free_running_ranks_fetch_their_inputs_by_themselves(control_plane: ControlPlane, fleet: Any) -> None:
    nodes: FakeFleet = fleet(2)
    may_end = asyncio.Event()

    async def rank_1_is_slow(rank: FakeRank, item: Any) -> int:
        if rank.prepare.rank == 1:
            await may_end.wait()
        return rank.prepare.rank

    nodes.program = rank_1_is_slow
    caller = Caller(control_plane)
    options = {"inputs_in_step": "False", "finish_window": "0"}
    call_id = caller.call(caller.function(size=2, gpu=GPUS, experimental_options=options), inputs=3)
    until(lambda: [key[1] for key, _, _ in nodes.ran].count(0) == 3)
    assert [key[1] for key, _, _ in nodes.ran].count(1) == 1, "rank 0 is two inputs ahead"
    assert caller.outputs(call_id, 0) == []
    control_plane.call(may_end.set)
    assert caller.results(call_id, 3) == [0, 0, 0]
    by_rank = [[input_id for key, input_id, _ in nodes.ran if key[1] == rank] for rank in (0, 1)]
    assert by_rank[0] == by_rank[1] and len(assignments(control_plane)) == 1
