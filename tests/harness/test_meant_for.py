"""What a cluster is started for: one answer for the queue's deadline, for the nodes that are left out, and for who takes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

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


def test_a_cluster_takes_what_it_was_started_for(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    late = asyncio.Event()

    async def first_is_slow(rank: FakeRank) -> None:
        if rank.prepare.assignment == 1:
            await late.wait()

    async def whose(rank: FakeRank, item: Any) -> str:
        return str(control_plane.server.world[Assignment][rank.prepare.assignment].input_id)

    nodes.before_hello, nodes.program = first_is_slow, whose
    caller = Caller(control_plane)
    function_id = caller.function(gpu="H100:8", single_use_containers=True)
    first = caller.call(function_id)
    until(lambda: len(started_for(control_plane)) == 1)
    second = caller.call(function_id)
    assert caller.result(second) == input_of(control_plane, second).input_id, "though it is behind the first in the queue"
    control_plane.call(late.set)
    assert caller.result(first) == input_of(control_plane, first).input_id
    assert len(started_for(control_plane)) == 2
