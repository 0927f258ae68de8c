"""The control plane on PostgreSQL: what SQLite does for it too, and what only a server of its own can do to it."""

from __future__ import annotations

import pytest
from grpclib.exceptions import GRPCError
from modal_proto import api_pb2

from phalanx.model.app import App
from phalanx.model.cluster import Assignment
from phalanx.model.work import Call
from tests.databases import postgresql
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.waiting import until

pytestmark = pytest.mark.parametrize("database", ["postgresql"], indirect=True)

CREATE = api_pb2.AppCreateRequest(description="once", app_state=api_pb2.APP_STATE_DETACHED)


def test_calls_run_and_outlive_a_restart(control_plane: ControlPlane) -> None:
    nodes = FakeFleet(control_plane, 4)
    nodes.start()
    caller = Caller(control_plane)
    done = [caller.call(caller.function(size=2, gpu="H100:8")), caller.call(caller.function("plain"), inputs=50)]
    assert caller.result(done[0]) == 0 and len(caller.results(done[1], 50)) == 50
    before = {kind: len(control_plane.server.world[kind]) for kind in (App, Call, Assignment)}
    nodes.stop()
    control_plane.restart()
    assert {kind: len(control_plane.server.world[kind]) for kind in (App, Call, Assignment)} == before
    assert caller.result(done[0]) == 0 and len(caller.results(done[1], 50)) == 50
    assert not (control_plane.paths.database).exists()


def test_a_request_that_broke_with_the_database_has_its_effect_once(control_plane: ControlPlane, database: str) -> None:
    """Nothing is acknowledged; the process ends; the next one takes the retry."""
    ended: list[bool] = []
    control_plane.server.end_process = lambda: ended.append(True)
    first = control_plane.rpc("AppCreate", CREATE, key="k1").app_id
    postgresql().cut(database)
    with pytest.raises(GRPCError):
        control_plane.rpc("AppCreate", CREATE, key="k2")
    until(lambda: ended)
    control_plane.restart()
    again = [control_plane.rpc("AppCreate", CREATE, key=key).app_id for key in ("k1", "k2")]
    assert again[0] == first and sorted(control_plane.server.world[App]) == sorted(again)
    control_plane.bugs.clear()
