"""A bug of ours half-way through a change: the process ends rather than go on from half-changed records, and does not end in a circle."""

from __future__ import annotations

from typing import Any

import pytest
from grpclib.exceptions import GRPCError
from modal_proto import api_pb2

from phalanx.core import events as ev
from phalanx.model.app import App
from phalanx.server.apps import Apps
from phalanx.server.bugs import REMEMBERED_MS
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.waiting import until

CREATE = api_pb2.AppCreateRequest(description="unlucky", app_state=api_pb2.APP_STATE_DETACHED)


def break_apps(monkeypatch: pytest.MonkeyPatch, after_the_change: bool) -> None:
    create = Apps.create

    def broken(self: Apps, unit: Any, *, description: str, **said: Any) -> App:
        if not after_the_change and description == "unlucky":
            raise KeyError("a bug of ours")
        app = create(self, unit, description=description, **said)
        if description == "unlucky":
            raise KeyError("a bug of ours")
        return app

    monkeypatch.setattr(Apps, "create", broken)


def ends(plane: ControlPlane) -> list[bool]:
    """What ends the process from now on is counted here."""
    ended: list[bool] = []
    plane.server.end_process = lambda: ended.append(True)
    return ended


def test_a_bug_after_a_change_ends_the_process_once_and_the_request_is_then_refused(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_apps(monkeypatch, after_the_change=True)
    ended = ends(control_plane)
    with pytest.raises(GRPCError):
        control_plane.rpc("AppCreate", CREATE, key="k1")
    assert ended == [True]
    control_plane.restart()
    ended = ends(control_plane)
    assert not [app for app in control_plane.server.world[App].values() if app.description == "unlucky"]
    with pytest.raises(GRPCError, match="ended the Phalanx server by a bug in AppCreate .*a bug of ours.*not tried again"):
        control_plane.rpc("AppCreate", CREATE, key="k1")
    assert ended == [] and Caller(control_plane, "lucky").app_id

    monkeypatch.undo()      # repaired, or only so that it may be tried again
    control_plane.restart()
    control_plane.clock.away(REMEMBERED_MS)
    control_plane.restart()
    assert control_plane.rpc("AppCreate", CREATE, key="k1").app_id
    control_plane.bugs.clear()


def test_a_bug_before_any_change_is_answered_and_life_goes_on(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    break_apps(monkeypatch, after_the_change=False)
    ended = ends(control_plane)
    with pytest.raises(GRPCError, match="the Phalanx server failed in AppCreate: KeyError"):
        control_plane.rpc("AppCreate", CREATE)
    assert ended == [] and Caller(control_plane, "lucky").app_id
    control_plane.bugs.clear()


def test_a_bug_in_a_machine_that_has_changed_its_records_ends_the_process(
    control_plane: ControlPlane, fleet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = fleet(1)
    caller = Caller(control_plane)
    caller.result(caller.call(caller.function()))
    ended = ends(control_plane)
    gang = next(iter(control_plane.server.gangs.running.values()))
    handle = gang.handle

    def broken(event: ev.Event, now_ms: int) -> Any:
        handle(event, now_ms)
        raise KeyError("a bug of ours")

    monkeypatch.setattr(gang, "handle", broken)
    nodes.stop()        # its container ends
    nodes.start()
    until(lambda: ended and any("Session failed" in bug for bug in control_plane.bugs))     # a real process would be gone by then
    control_plane.bugs.clear()
