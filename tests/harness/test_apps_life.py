"""How apps begin and end: with their client, without it, on demand, and over a restart of the server."""

from __future__ import annotations

import json
import urllib.request

import modal
import pytest
from grpclib.exceptions import GRPCError
from modal_proto import api_pb2

from phalanx.model.app import App, AppState
from phalanx.model.work import Call, Input, InputState
from phalanx.server.apps import LIST_STOPPED_MS
from tests.harness.control_plane import ControlPlane

PROGRAM = """
import modal

app = modal.App("empty-program")

@app.local_entrypoint()
def main():
    print("the app is", app.app_id)
"""


def create(control_plane: ControlPlane, state: int = AppState.EPHEMERAL, key: str = "") -> str:
    request = api_pb2.AppCreateRequest(description="my-run.py", app_state=state)
    return str(control_plane.rpc("AppCreate", request, key=key).app_id)


def state(control_plane: ControlPlane, app_id: str) -> int:
    return int(control_plane.rpc("AppGetLifecycle", api_pb2.AppGetLifecycleRequest(app_id=app_id)).lifecycle.app_state)


def listed(control_plane: ControlPlane) -> dict[str, str]:
    rows = json.loads(control_plane.modal("app", "list", "--json").stdout)
    return {row["app_id"]: row["state"] for row in rows}


def leave_open_input(control_plane: ControlPlane, app_id: str) -> None:
    def add(unit: object) -> None:
        unit.put(Call("fc-1", "fu-1", app_id, num_inputs=1))
        unit.put(Input("in-1", "fc-1", "fu-1", 0))

    control_plane.change(add)


def test_a_program_runs_and_its_app_stops_with_it(control_plane: ControlPlane) -> None:
    program = control_plane.folder / "program.py"
    program.write_text(PROGRAM)
    ran = control_plane.modal("run", "-q", str(program))
    assert ran.returncode == 0, ran.stderr
    app_id = ran.stdout.split()[-1]
    assert listed(control_plane) == {app_id: "stopped"}
    app = control_plane.server.world[App][app_id]
    assert app.stop_reason == "its program has ended"
    assert app.drained


def test_an_exception_in_the_program_stops_its_app_and_is_remembered(control_plane: ControlPlane) -> None:
    program = control_plane.folder / "program.py"
    program.write_text(PROGRAM + "    raise ValueError('not today')\n")
    assert control_plane.modal("run", "-q", str(program)).returncode == 1
    (app,) = control_plane.server.world[App].values()
    assert app.state == AppState.STOPPED
    assert "its program raised an exception" in app.stop_reason and "not today" in app.stop_reason


def test_a_retried_create_makes_one_app(control_plane: ControlPlane) -> None:
    first = create(control_plane, key="once")
    assert create(control_plane, key="once") == first
    control_plane.restart()
    assert create(control_plane, key="once") == first
    assert create(control_plane, key="twice") != first
    assert len(control_plane.server.world[App]) == 2


def test_an_app_whose_client_vanished_is_stopped(control_plane: ControlPlane) -> None:
    silent, alive = create(control_plane), create(control_plane)
    for _ in range(6):
        control_plane.advance(15_000)
        control_plane.rpc("AppHeartbeat", api_pb2.AppHeartbeatRequest(app_id=alive))
    assert state(control_plane, silent) == AppState.STOPPED
    assert "was not heard of for" in control_plane.server.world[App][silent].stop_reason
    assert state(control_plane, alive) == AppState.EPHEMERAL


def test_a_first_deployment_whose_client_vanished_is_stopped(control_plane: ControlPlane) -> None:
    app_id = create(control_plane, AppState.INITIALIZING)
    control_plane.advance(90_000)
    assert state(control_plane, app_id) == AppState.STOPPED


def test_clients_are_not_charged_for_the_servers_own_absence(control_plane: ControlPlane) -> None:
    app_id = create(control_plane)
    control_plane.stop()
    control_plane.clock.away(3_600_000)
    control_plane.start()
    control_plane.advance(60_000)
    assert state(control_plane, app_id) == AppState.EPHEMERAL
    control_plane.advance(30_000)
    assert state(control_plane, app_id) == AppState.STOPPED


def test_a_detached_app_outlives_its_client_while_work_is_open(control_plane: ControlPlane) -> None:
    app_id = create(control_plane, AppState.DETACHED)
    leave_open_input(control_plane, app_id)
    control_plane.rpc("AppClientDisconnect", api_pb2.AppClientDisconnectRequest(app_id=app_id))
    assert listed(control_plane) == {app_id: "ephemeral (detached)"}
    control_plane.restart()
    control_plane.advance(600_000)
    assert state(control_plane, app_id) == AppState.DETACHED_DISCONNECTED

    def decide(unit: object) -> None:
        record, call = control_plane.server.world[Input]["in-1"], control_plane.server.world[Call]["fc-1"]
        record.state, call.num_outputs = InputState.DONE, 1
        unit.put(record)
        unit.put(call)

    control_plane.change(decide)
    control_plane.advance(10_000)
    assert state(control_plane, app_id) == AppState.STOPPED
    assert control_plane.server.world[App][app_id].stop_reason == "its last call has ended"


def test_a_detached_app_whose_client_vanished_goes_on_and_takes_it_back(control_plane: ControlPlane) -> None:
    app_id = create(control_plane, AppState.DETACHED)
    leave_open_input(control_plane, app_id)
    control_plane.advance(90_000)
    assert state(control_plane, app_id) == AppState.DETACHED_DISCONNECTED
    control_plane.rpc("AppHeartbeat", api_pb2.AppHeartbeatRequest(app_id=app_id))
    assert state(control_plane, app_id) == AppState.DETACHED


def test_a_detached_app_without_work_stops_with_its_client(control_plane: ControlPlane) -> None:
    app_id = create(control_plane, AppState.DETACHED)
    control_plane.rpc("AppClientDisconnect", api_pb2.AppClientDisconnectRequest(app_id=app_id))
    assert state(control_plane, app_id) == AppState.STOPPED


def test_a_stopping_app_is_stopped_once_nothing_of_it_runs(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    app_id = create(control_plane)
    told = []
    gangs = control_plane.server.gangs
    monkeypatch.setattr(gangs, "stop_app", lambda unit, app_id, cause, sentence: told.append((app_id, cause, sentence)))
    monkeypatch.setattr(gangs, "app_is_quiet", lambda app_id: False)
    stopped = control_plane.modal("app", "stop", app_id, "--yes")
    assert stopped.returncode == 0, stopped.stderr
    assert told == [(app_id, "stopped", "stopped by local with `modal app stop`")]
    assert listed(control_plane) == {app_id: "stopping..."}
    control_plane.advance(60_000)
    assert state(control_plane, app_id) == AppState.STOPPING
    control_plane.change(control_plane.server.apps.drained, app_id)
    assert state(control_plane, app_id) == AppState.STOPPED
    again = control_plane.modal("app", "stop", app_id, "--yes")
    assert "already stopped" in again.stderr and "by 'local'" in again.stderr


def test_an_app_that_was_stopping_when_the_server_died_stops(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    app_id = create(control_plane)
    monkeypatch.setattr(control_plane.server.gangs, "app_is_quiet", lambda app_id: False)
    control_plane.rpc("AppStop", api_pb2.AppStopRequest(app_id=app_id))
    control_plane.restart()
    control_plane.advance(10_000)
    assert state(control_plane, app_id) == AppState.STOPPED


def test_old_stopped_apps_leave_the_list_and_keep_their_id(control_plane: ControlPlane) -> None:
    app_id = create(control_plane)
    control_plane.rpc("AppStop", api_pb2.AppStopRequest(app_id=app_id))
    assert app_id in listed(control_plane)
    control_plane.advance(LIST_STOPPED_MS + 1000)
    assert listed(control_plane) == {}
    assert control_plane.modal("app", "info", app_id).returncode == 0


def test_unknown_and_stopped_apps_are_refused_with_a_sentence(control_plane: ControlPlane) -> None:
    with pytest.raises(GRPCError, match="App 'ap-none' not found"):
        control_plane.rpc("AppHeartbeat", api_pb2.AppHeartbeatRequest(app_id="ap-none"))
    app_id = create(control_plane)
    control_plane.rpc("AppStop", api_pb2.AppStopRequest(app_id=app_id))
    with pytest.raises(GRPCError, match=f"app '{app_id}' is stopped: stopped by local. Run or deploy it again"):
        control_plane.rpc("AppPublish", api_pb2.AppPublishRequest(app_id=app_id, app_state=AppState.EPHEMERAL))


def test_looking_up_an_app_makes_it_if_asked(control_plane: ControlPlane) -> None:
    with pytest.raises(modal.exception.NotFoundError, match="App 'pool' not found. It is not deployed in environment 'main'"):
        modal.App.lookup("pool")
    made = modal.App.lookup("pool", create_if_missing=True)
    assert modal.App.lookup("pool").app_id == made.app_id
    assert modal.App.lookup(made.app_id).app_id == made.app_id
    assert [app.name for app in modal.Environment.from_name("main").apps.list()] == ["pool"]
    made.set_tags({"team": "training"})
    assert made.get_tags() == {"team": "training"}
    made.stop()
    assert listed(control_plane) == {made.app_id: "stopped"}


def test_the_page_of_an_app_says_its_state_and_the_commands(control_plane: ControlPlane) -> None:
    created = control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(description="<script>", app_state=AppState.EPHEMERAL))
    with urllib.request.urlopen(created.app_page_url) as answer:
        page = answer.read().decode()
    assert f"{created.app_id} is ephemeral" in page and f"modal app logs {created.app_id}" in page
    assert "<script>" not in page
