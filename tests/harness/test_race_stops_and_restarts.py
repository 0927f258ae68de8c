"""A stop, a cancellation or a restart meets work that is just ending: nothing waits for ever, nothing is told what is no longer so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from modal_proto import api_pb2

from phalanx.core import events as ev
from phalanx.model.cluster import Assignment, Phase
from phalanx.model.work import Call, Input, InputState
from tests.harness.callers import Caller, Failed
from tests.harness.conftest import OVER_BOTH_DATABASES
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import Died, FakeFleet, FakeRank
from tests.harness.waiting import until

pytestmark = OVER_BOTH_DATABASES

GPUS = "H100:8"


async def work_on(rank: FakeRank, item: Any) -> None:
    await asyncio.sleep(3600)


def test_a_retry_that_waits_out_its_delay_survives_a_restart(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = FakeFleet(control_plane, 1)
    nodes.start()

    async def fail_once(rank: FakeRank, item: Any) -> str:
        if item.retry_count == 0:
            raise ValueError("not yet")
        return "second try"

    nodes.program = fail_once
    caller = Caller(control_plane)
    retries = api_pb2.FunctionRetryPolicy(retries=1, initial_delay_ms=60_000, max_delay_ms=60_000, backoff_coefficient=1.0)
    call_id = caller.call(caller.function(retry_policy=retries))
    world = control_plane.server.world
    until(lambda: any(item.not_before_ms for item in world[Input].values()))
    nodes.stop()
    control_plane.restart()
    fleet(1).program = fail_once    # the same machine, whose container is gone
    until(lambda: not control_plane.server.gangs.running)
    control_plane.advance(40_000)   # over all that a lost node makes the planner look for
    control_plane.advance(25_000)
    assert caller.result(call_id) == "second try"


@pytest.mark.parametrize("lost", [False, True], ids=["with a retry left", "not its fault"])
def test_an_app_is_stopped_while_a_failed_cluster_of_it_still_ends(control_plane: ControlPlane, fleet: Any, lost: bool) -> None:
    """The failure came first, so the input would go back in the queue: of an app that runs nothing any more."""
    nodes = fleet(2)
    nodes.deaf_to_stop = True
    may_die = asyncio.Event()

    async def die(rank: FakeRank, item: Any) -> None:
        await may_die.wait()
        if rank.prepare.rank == 1:
            raise Died(code=3)
        await asyncio.sleep(3600)

    nodes.program = die
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS, retry_policy=api_pb2.FunctionRetryPolicy(retries=1, initial_delay_ms=1000)))
    until(lambda: len(nodes.ran) == 2)
    gangs = control_plane.server.gangs
    number = next(iter(gangs.running))
    if lost:
        control_plane.change(gangs.dispatch, number, ev.NodeLost(1, "node-1 is gone"))
    else:
        control_plane.call(may_die.set)
    until(lambda: control_plane.server.world[Assignment][number].phase == Phase.ENDING)
    caller.stop()
    control_plane.change(gangs.dispatch, number, ev.Exited(0, control_plane.server.now_ms(), signal=9))
    until(lambda: all(item.state == InputState.DONE for item in control_plane.server.world[Input].values()), timeout_s=5)
    with pytest.raises(Failed, match="was stopped" if lost else "exited with code 3"):
        caller.result(call_id)


def test_a_map_of_a_stopped_app_takes_no_more_inputs(control_plane: ControlPlane) -> None:
    caller = Caller(control_plane)
    request = api_pb2.FunctionMapRequest(function_id=caller.function(), function_call_type=api_pb2.FUNCTION_CALL_TYPE_MAP)
    call_id = control_plane.rpc("FunctionMap", request).function_call_id
    caller.stop()
    item = api_pb2.FunctionPutInputsItem(idx=0, input=api_pb2.FunctionInput(args=b"x"))
    with pytest.raises(GRPCError, match="is stopped") as refused:
        control_plane.rpc("FunctionPutInputs", api_pb2.FunctionPutInputsRequest(function_call_id=call_id, inputs=[item]))
    assert refused.value.status == Status.FAILED_PRECONDITION


def test_a_call_beyond_the_limit_leaves_nothing(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.server.calls.MOST_WAITING", 1)
    caller = Caller(control_plane)
    function_id = caller.function()
    first = caller.call(function_id)
    with pytest.raises(GRPCError, match="1 inputs of this function wait already"):
        caller.call(function_id)
    assert list(control_plane.server.world[Call]) == [first]


def test_a_cancelled_call_waits_for_nodes_no_more(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.program = work_on
    caller = Caller(control_plane)
    caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: len(nodes.ran) == 2)
    call_id = caller.call(caller.function("other", size=2, gpu=GPUS))
    planning = control_plane.server.planning
    waits = until(lambda: [request.request_id for request, _ in planning.waiting()])
    caller.cancel(call_id)
    until(lambda: not [request for request, _ in planning.waiting() if request.request_id in waits], timeout_s=5)


def test_a_container_adds_data_only_to_the_call_it_works_on(control_plane: ControlPlane, fleet: Any) -> None:
    """Its own by name, and by the token of its input; another's, or one that is not there, is dropped."""
    nodes = fleet(1)
    caller = Caller(control_plane)
    request = api_pb2.FunctionMapRequest(function_id=caller.function("foreign"), function_call_type=api_pb2.FUNCTION_CALL_TYPE_MAP)
    foreign = control_plane.rpc("FunctionMap", request).function_call_id

    async def generate(rank: FakeRank, item: Any) -> str:
        for index, names in enumerate(({"function_call_id": foreign}, {"attempt_token": "in-none"}, {"attempt_token": item.input_id}), 1):
            chunk = api_pb2.DataChunk(index=index, data=b"data")
            await rank.rpc("FunctionCallPutDataOut", api_pb2.FunctionCallPutDataRequest(data_chunks=[chunk], **names))
        return "done"

    nodes.program = generate
    call_id = caller.call(caller.function())
    assert caller.result(call_id) == "done"
    calls = control_plane.server.calls
    assert calls.chunks_after(foreign, 0) == []
    assert [chunk.index for chunk in calls.chunks_after(call_id, 0)] == [3]


def test_a_lost_node_comes_back_while_its_cluster_still_ends_and_is_told_to_clean_up(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.deaf_to_stop = True
    nodes.program = work_on
    caller = Caller(control_plane)
    caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: len(nodes.ran) == 2)
    gangs = control_plane.server.gangs
    number = next(iter(gangs.running))
    control_plane.change(gangs.dispatch, number, ev.NodeLost(1, "node-1 was away"))
    control_plane.change(gangs.dispatch, number, ev.Exited(0, control_plane.server.now_ms(), signal=9))
    until(lambda: {(r.assignment, r.rank) for r in nodes.starts("release")} == {(number, 0), (number, 1)}, timeout_s=5)


def test_a_request_that_can_not_be_committed_ends_the_process(control_plane: ControlPlane) -> None:
    """Memory is ahead of the store then: going on would answer from what a restart takes back."""
    ended: list[bool] = []
    control_plane.server.end_process = lambda: ended.append(True)
    caller = Caller(control_plane)
    control_plane.server.database._failed = OSError("disk full")
    with pytest.raises(GRPCError):
        caller.plane.rpc("AppCreate", api_pb2.AppCreateRequest(description="lost", app_state=api_pb2.APP_STATE_EPHEMERAL))
    until(lambda: ended)
    control_plane.bugs.clear()


def test_one_container_that_dies_in_its_import_fails_nothing_while_another_works(control_plane: ControlPlane, fleet: Any) -> None:
    """A map's inputs wait for whoever has a place; that one of many starts died is no verdict on all of them."""
    nodes = fleet(1)
    may_end = asyncio.Event()
    imports: list[FakeRank] = []

    async def second_dies(rank: FakeRank) -> None:
        imports.append(rank)
        if len(imports) == 2:
            raise Died(signal=9)

    async def wait(rank: FakeRank, item: Any) -> str:
        await may_end.wait()
        return "done"

    nodes.on_import, nodes.program = second_dies, wait
    caller = Caller(control_plane)
    function_id = caller.function()
    first = caller.call(function_id)
    until(lambda: nodes.ran)
    second = caller.call(function_id)
    until(lambda: any(rank.exited for rank in imports))
    until(lambda: len(control_plane.server.gangs.running) == 1)
    control_plane.call(may_end.set)
    assert [caller.result(call_id) for call_id in (first, second)] == ["done", "done"]
