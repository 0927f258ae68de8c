"""Functions of one name and size predict each other's runs: those that may still run, and not all that there ever were."""

from __future__ import annotations

from typing import Any

from modal_proto import api_pb2

from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.waiting import until


def test_a_function_whose_app_is_over_is_looked_at_no_more_and_what_it_showed_stays(control_plane: ControlPlane, fleet: Any) -> None:
    fleet(1)
    planning = control_plane.server.planning
    for _ in range(3):
        caller = Caller(control_plane)
        function_id = caller.function("train", size=1, gpu="H100:8", clustered=True)
        assert caller.result(caller.call(function_id)) == 0
        assert planning.fleet._families == {"train/1": {function_id}}, "the ones before are over"
        control_plane.rpc("AppStop", api_pb2.AppStopRequest(app_id=caller.app_id))
        until(lambda: not planning.fleet._families)
    assert len(planning.durations.logs["train/1"]) == 3 and planning.durations.logs.keys() == {"train/1"}
