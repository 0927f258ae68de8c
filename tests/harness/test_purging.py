"""Old things go, whole, and nothing of what is younger."""

from __future__ import annotations

from phalanx.model.app import App
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
    for kind in (Function, Call):
        assert {record.app_id for record in world[kind].values()} == {young.app_id}
    assert len(world[Input]) == len(world[Output]) == 1
    fleet.stop()
