"""Starts whose import or @enter fails, three in a row on different nodes: the function's next ones wait, and everybody is told why."""

from __future__ import annotations

from typing import Any

import pytest
from modal_proto import api_pb2

from phalanx.cli.admin import call
from phalanx.model.failed_starts import CrashedStarts
from phalanx.model.work import Function
from tests.harness.callers import Caller, Failed
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import Died, FakeFleet, FakeRank
from tests.harness.waiting import until


async def crash(rank: FakeRank) -> None:
    raise Died(signal=11)


async def go_on(rank: FakeRank) -> None:
    return None


def crashes_once(plane: ControlPlane, caller: Caller, function_id: str) -> str:
    """Call it, and return the node on which it crashed."""
    with pytest.raises(Failed, match="on node node-.* was killed by signal 11") as failed:
        caller.result(caller.call(function_id))
    until(lambda: not plane.server.gangs.running)
    return str(failed.value).split()[4]


def is_resting(plane: ControlPlane, function_id: str) -> bool:
    return plane.server.gangs.pool(function_id).resting_until_ms > plane.server.now_ms()


def explained(plane: ControlPlane, of: str) -> str:
    return "\n".join(call(f"127.0.0.1:{plane.port}", plane.config, "Explain", {"of": of})["lines"])


def crashing_fleet(control_plane: ControlPlane, fleet: Any, nodes: int) -> tuple[FakeFleet, Caller, str]:
    made: FakeFleet = fleet(nodes)
    made.on_import = crash
    caller = Caller(control_plane)
    return made, caller, caller.function("train", gpu="H100:8")


def test_three_crashes_on_different_nodes_make_it_wait(control_plane: ControlPlane, fleet: Any) -> None:
    _, caller, function_id = crashing_fleet(control_plane, fleet, 5)
    nodes = []
    for _ in range(3):
        assert not is_resting(control_plane, function_id)
        nodes.append(crashes_once(control_plane, caller, function_id))
        if len(nodes) < 3:
            control_plane.change(control_plane.server.nodes.cordon, nodes[-1])
    assert len(set(nodes)) == 3 and is_resting(control_plane, function_id)
    assert f"3 starts failed before they took an input, on {', '.join(nodes)}: " in explained(control_plane, function_id)


def test_one_bad_node_of_many_is_no_reason_but_six_in_a_row_are(control_plane: ControlPlane, fleet: Any) -> None:
    _, caller, function_id = crashing_fleet(control_plane, fleet, 3)
    assert len({crashes_once(control_plane, caller, function_id) for _ in range(5)}) == 1, "this planner fills the same node first"
    assert not is_resting(control_plane, function_id)
    crashes_once(control_plane, caller, function_id)
    assert is_resting(control_plane, function_id)


def test_the_wait_outlives_a_restart_is_explained_and_ends_with_new_code(control_plane: ControlPlane, fleet: Any) -> None:
    nodes, caller, function_id = crashing_fleet(control_plane, fleet, 1)
    for _ in range(3):
        crashes_once(control_plane, caller, function_id)
    nodes.lose_agent()
    control_plane.stop()
    nodes.outlive()
    control_plane.start()
    nodes.start()
    assert is_resting(control_plane, function_id)
    said = "its last 3 starts failed before they took an input, on node-0 (the fleet has 1 place for it now): "
    assert f"its next start waits 1 s: {said}" in explained(control_plane, function_id)
    call_id = caller.call(function_id)
    ((_, reason),) = until(lambda: control_plane.call(control_plane.server.planning.waiting))
    assert reason.code == "backoff" and said in explained(control_plane, call_id)

    nodes.on_import = go_on
    definition = api_pb2.Function.FromString(control_plane.server.world[Function][function_id].definition)
    again = api_pb2.FunctionCreateRequest(app_id=caller.app_id, existing_function_id=function_id, function=definition)
    assert control_plane.rpc("FunctionCreate", again).function_id == function_id
    assert caller.result(call_id) == 0, "though no time has passed"
    assert not control_plane.server.world[CrashedStarts]


def test_one_start_that_comes_through_ends_the_row(control_plane: ControlPlane, fleet: Any) -> None:
    nodes, caller, function_id = crashing_fleet(control_plane, fleet, 1)
    for _ in range(2):
        crashes_once(control_plane, caller, function_id)
    nodes.on_import = go_on
    assert caller.result(caller.call(function_id)) == 0
    assert not control_plane.server.world[CrashedStarts]
