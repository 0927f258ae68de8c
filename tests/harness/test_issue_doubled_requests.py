"""A runner's request for inputs that lay in a connection and arrived when its runner had asked three times since: it took an input that
nobody ran until its time-out (found by the simulated weather, seed 54603024 of a storm)."""

from __future__ import annotations

import asyncio
from typing import Any

from modal_proto import api_pb2

from phalanx.model.work import Input, InputState
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet, FakeRank
from tests.harness.waiting import until


def test_an_earlier_request_for_inputs_that_comes_once_more_takes_none(control_plane: ControlPlane) -> None:
    fleet = FakeFleet(control_plane, 1, gpu_type="", gpu_count=0)
    got: dict[str, list[str]] = {}

    async def asks_itself(rank: FakeRank, item: Any) -> Any:
        for asked in ("a", "b", "c", "a once more"):
            answer = await rank.rpc("FunctionGetInputs", api_pb2.FunctionGetInputsRequest(), key=asked[0])
            got[asked] = [entry.input_id for entry in answer.inputs]
        await asyncio.sleep(3600)

    fleet.program = asks_itself
    fleet.start()
    caller = Caller(control_plane)
    caller.call(caller.function(max_concurrent_inputs=6, target_concurrent_inputs=6), inputs=6)
    until(lambda: "a once more" in got)

    assert [len(inputs) for inputs in got.values()] == [1, 1, 1, 0]
    assert sum(item.state == InputState.PENDING for item in control_plane.server.world[Input].values()) == 2
    fleet.stop()
