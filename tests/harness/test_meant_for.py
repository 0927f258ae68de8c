"""What a cluster is started for: one answer for the queue's deadline, for the nodes that are left out, and for who takes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from modal_proto import api_pb2

from phalanx.model.cluster import Assignment
from phalanx.model.work import Input, InputState
from tests.harness.callers import Caller, Failed
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeRank
from tests.harness.waiting import until


def input_of(plane: ControlPlane, call_id: str) -> Input:
    return next(item for item in plane.server.world[Input].values() if item.call_id == call_id)


def started_for(plane: ControlPlane) -> list[str]:
    return [assignment.input_id for assignment in plane.server.world[Assignment].values()]


def test_a_call_whose_cluster_is_on_its_way_does_not_run_out_of_the_queue_in_the_place_of_one_that_waits(
    control_plane: ControlPlane, fleet: Any
) -> None:
    nodes = fleet(1)
    nodes.never_prepares = {"node-0"}
    caller = Caller(control_plane)
    function_id = caller.function(size=1, gpu="H100:8", experimental_options={"queue_deadline": "100"})
    first = caller.call(function_id)
    until(lambda: started_for(control_plane) == [input_of(control_plane, first).input_id])
    control_plane.advance(60_000)
    second = caller.call(function_id)
    until(lambda: control_plane.server.planning.waits)
    control_plane.advance(50_000)
    assert {input_of(control_plane, call).state for call in (first, second)} == {InputState.PENDING}, "110 s and 50 s old"
    control_plane.advance(60_000)
    with pytest.raises(Failed, match="gave up after 1[01][0-9] s in the queue"):
        caller.result(second)
    assert input_of(control_plane, first).state == InputState.PENDING, "it has its node"


def slow_start(plane: ControlPlane, nodes: Any, number: int) -> asyncio.Event:
    """That assignment's rank says hello when the event is set. A call answers with the input that its cluster was started for."""
    late = asyncio.Event()

    async def before_hello(rank: FakeRank) -> None:
        if rank.prepare.assignment == number:
            await late.wait()

    async def whose(rank: FakeRank, item: Any) -> str:
        return str(plane.server.world[Assignment][rank.prepare.assignment].input_id)

    nodes.before_hello, nodes.program = before_hello, whose
    return late


def test_a_new_input_is_taken_by_the_first_cluster_that_is_up_so_the_queue_keeps_its_order(control_plane: ControlPlane, fleet: Any) -> None:
    late = slow_start(control_plane, fleet(2), 1)
    caller = Caller(control_plane)
    function_id = caller.function(gpu="H100:8", single_use_containers=True)
    first = caller.call(function_id)
    until(lambda: len(started_for(control_plane)) == 1)
    second = caller.call(function_id)
    assert caller.result(first) == input_of(control_plane, second).input_id, "it did not wait for its own"
    control_plane.call(late.set)
    assert caller.result(second) == input_of(control_plane, first).input_id
    assert len(started_for(control_plane)) == 2


def test_a_retry_has_the_cluster_that_was_started_for_it(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)
    late = slow_start(control_plane, nodes, 3)
    fail, whose = asyncio.Event(), nodes.program

    async def the_first_time_it_fails(rank: FakeRank, item: Any) -> str:
        if not item.retry_count:
            await fail.wait()
            raise ValueError("the first time")
        return str(await whose(rank, item))

    nodes.program = the_first_time_it_fails
    caller = Caller(control_plane)
    function_id = caller.function(gpu="H100:8", single_use_containers=True, retry_policy=api_pb2.FunctionRetryPolicy(retries=1))
    calls = [caller.call(function_id) for _ in range(2)]
    until(lambda: all(input_of(control_plane, call).state == InputState.RUNNING for call in calls))
    control_plane.call(fail.set)
    until(lambda: len(started_for(control_plane)) == 4)
    slow = next(call for call in calls if input_of(control_plane, call).input_id == started_for(control_plane)[2])
    quick = next(call for call in calls if call != slow)
    assert caller.result(quick) == input_of(control_plane, quick).input_id
    assert input_of(control_plane, slow).state == InputState.PENDING
    control_plane.call(late.set)
    assert caller.result(slow) == input_of(control_plane, slow).input_id
