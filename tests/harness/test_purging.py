"""Old things go, whole, and nothing of what is younger."""

from __future__ import annotations

from modal_proto import api_pb2

from phalanx.model.app import App, AppState
from phalanx.model.cluster import Assignment, Attempt, Member, Phase
from phalanx.model.kept import KeptAnswer
from phalanx.model.work import Call, Function, Input, Output
from phalanx.server.purging import DAY_MS, KEEP_ANSWERS_MS
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.waiting import until


def test_a_stopped_app_goes_after_a_week_with_its_calls_and_a_running_one_stays(control_plane: ControlPlane) -> None:
    fleet = FakeFleet(control_plane, 2, gpu_type="", gpu_count=0)
    fleet.start()
    world = control_plane.server.world
    old, young = Caller(control_plane, "old"), Caller(control_plane, "young")
    for caller in (old, young):
        caller.result(caller.call(caller.function(), key=caller.app_id))
    old.stop()
    until(lambda: world[App][old.app_id].drained)
    assert world[KeptAnswer]

    control_plane.advance(KEEP_ANSWERS_MS + 11 * 60_000)
    assert not [kept for kept in world[KeptAnswer].values() if kept.rpc == "FunctionMap"]
    assert old.app_id in world[App]

    control_plane.advance(7 * DAY_MS)
    assert old.app_id not in world[App] and young.app_id in world[App]
    assert {function.app_id for function in world[Function].values()} == {young.app_id}
    fleet.stop()


def test_calls_and_clusters_of_an_app_that_lives_on_go_after_a_week_and_open_ones_stay(control_plane: ControlPlane) -> None:
    fleet = FakeFleet(control_plane, 2, gpu_type="", gpu_count=0)
    fleet.start()
    world = control_plane.server.world
    caller = Caller(control_plane)
    control_plane.change(lambda unit: setattr(world[App][caller.app_id], "state", AppState.DEPLOYED))
    function_id = caller.function()
    caller.result(caller.call(function_id))
    control_plane.advance(120_000)      # over its window: the container leaves
    until(lambda: all(one.phase == Phase.ENDED for one in world[Assignment].values()))
    request = api_pb2.FunctionMapRequest(function_id=function_id, function_call_type=api_pb2.FUNCTION_CALL_TYPE_MAP)
    still_open = control_plane.rpc("FunctionMap", request).function_call_id
    assert len(world[Call]) == 2

    control_plane.advance(8 * DAY_MS)
    assert list(world[Call]) == [still_open]
    assert not world[Input] and not world[Output] and not world[Attempt]
    assert not [one for kind in (Assignment, Member) for one in world[kind].values()]
    assert caller.app_id in world[App] and not control_plane.server.gangs.by_task
    fleet.stop()
