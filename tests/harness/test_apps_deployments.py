"""Deployments: versions, history, and the ways back, by the stock command line."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from grpclib.exceptions import GRPCError
from modal_proto import api_pb2

from phalanx.model.app import App, AppState, AppVersion, Class
from phalanx.model.work import Function
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.waiting import until
from tests.harness.working import GPUS, Work

PROGRAM = "import modal\napp = modal.App('trainer')\n"


def deploy(control_plane: ControlPlane, *options: str) -> str:
    program = control_plane.folder / "trainer.py"
    program.write_text(PROGRAM)
    deployed = control_plane.modal("deploy", str(program), *options)
    assert deployed.returncode == 0, deployed.stderr
    return deployed.stdout


def app_of(control_plane: ControlPlane, name: str = "trainer") -> App:
    return next(app for app in control_plane.server.world[App].values() if app.name == name and app.state == AppState.DEPLOYED)


def put_function(control_plane: ControlPlane, app_id: str, definition: str, function_id: str = "fu-train", **values: Any) -> None:
    """As FunctionCreate leaves it: changed at once, under the id it has had."""
    function = Function(function_id, app_id, "train", definition_id=definition, gpus=[["H100", 8, False]], **values)
    function.definition = api_pb2.Function(function_name="train").SerializeToString()
    control_plane.change(lambda unit: unit.put(function))


def publish(control_plane: ControlPlane, app_id: str, definition: str, **fields: Any) -> Any:
    put_function(control_plane, app_id, definition)
    request = api_pb2.AppPublishRequest(
        app_id=app_id, app_state=AppState.DEPLOYED, name="trainer",
        function_ids={"train": "fu-train"}, definition_ids={"fu-train": definition}, **fields,
    )  # fmt: skip
    return control_plane.rpc("AppPublish", request)


def deploy_versions(control_plane: ControlPlane, *definitions: str) -> str:
    created = control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(description="trainer", app_state=AppState.INITIALIZING))
    for definition in definitions:
        publish(control_plane, created.app_id, definition)
    return str(created.app_id)


def live_function(control_plane: ControlPlane) -> Function:
    return control_plane.server.world[Function]["fu-train"]


def history(control_plane: ControlPlane) -> list[str]:
    return [row["version"] for row in json.loads(control_plane.modal("app", "history", "trainer", "--json").stdout)]


def test_an_app_is_deployed_found_and_stopped_by_name(control_plane: ControlPlane) -> None:
    said = deploy(control_plane, "--tag", "first")
    app = app_of(control_plane)
    assert f"{control_plane.url}/apps/{app.app_id}" in said
    info = json.loads(control_plane.modal("app", "info", "trainer", "--json").stdout)
    assert info["app_id"] == app.app_id
    assert info["lifecycle"]["state"] == "deployed" and info["lifecycle"]["version"] == 1
    shown = control_plane.modal("app", "history", "trainer").stdout
    assert "v1" in shown and "1.6.4" in shown and "local" in shown and "first" in shown

    assert control_plane.modal("app", "stop", "trainer", "--yes").returncode == 0
    again = control_plane.modal("app", "stop", "trainer", "--yes")
    assert "App is already stopped. (Stopped at" in again.stderr
    deploy(control_plane)
    assert app_of(control_plane).app_id != app.app_id


def test_a_deployed_app_survives_a_restart_and_its_client(control_plane: ControlPlane) -> None:
    deploy(control_plane)
    control_plane.restart()
    control_plane.advance(3_600_000)
    assert app_of(control_plane).state == AppState.DEPLOYED
    assert history(control_plane) == ["v1"]


def test_a_redeploy_without_changes_is_skipped(control_plane: ControlPlane) -> None:
    deploy(control_plane)
    assert "Deployment skipped: no changes detected" in deploy(control_plane)
    assert "App deployed" in deploy(control_plane, "--tag", "wanted")
    assert history(control_plane) == ["v2", "v1"]


def test_a_function_without_a_definition_id_counts_as_changed(control_plane: ControlPlane) -> None:
    app_id = deploy_versions(control_plane, "", "")
    assert [version.version for version in control_plane.server.deployments.history(app_id)] == [2, 1]


def test_publishing_makes_functions_live_and_tells_the_planner(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = []
    monkeypatch.setattr(control_plane.server.gangs, "function_changed", lambda unit, function_id: changed.append(function_id))
    app_id = deploy_versions(control_plane)
    put_function(control_plane, app_id, "de-p", "fu-bound", bound_to="fu-train")
    publish(control_plane, app_id, "de-1")
    assert live_function(control_plane).published
    assert control_plane.server.world[Function]["fu-bound"].published
    assert sorted(changed) == ["fu-bound", "fu-train"]
    summary = control_plane.modal("app", "info", "trainer").stdout
    assert "fu-train" in summary and "8 × H100 GPU" in summary

    control_plane.modal("app", "stop", "trainer", "--yes")
    assert not live_function(control_plane).published


def test_an_ephemeral_app_gets_its_layout_and_no_version(control_plane: ControlPlane) -> None:
    created = control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(app_state=AppState.EPHEMERAL))
    put_function(control_plane, created.app_id, "de-1")
    control_plane.change(lambda unit: unit.put(Class("cs-1", created.app_id, "Trainer", "fu-train")))
    answer = control_plane.rpc(
        "AppPublish",
        api_pb2.AppPublishRequest(
            app_id=created.app_id, app_state=AppState.EPHEMERAL, function_ids={"Trainer.*": "fu-train"}, class_ids={"Trainer": "cs-1"}
        ),
    )
    assert answer.url == created.app_page_url and answer.deployed_at
    layout = control_plane.rpc("AppGetLayout", api_pb2.AppGetLayoutRequest(app_id=created.app_id)).app_layout
    assert dict(layout.function_ids) == {"Trainer.*": "fu-train"} and dict(layout.class_ids) == {"Trainer": "cs-1"}
    handles = {item.object_id: item for item in layout.objects}
    assert handles["fu-train"].function_handle_metadata.definition_id == "de-1"
    assert handles["cs-1"].class_handle_metadata.class_function_id == "fu-train"
    objects = control_plane.rpc("AppGetObjects", api_pb2.AppGetObjectsRequest(app_id=created.app_id)).items
    assert {item.tag for item in objects} == {"Trainer.*", "Trainer"}
    assert not live_function(control_plane).published
    assert not control_plane.server.world[AppVersion]


def test_functions_of_another_app_are_refused(control_plane: ControlPlane) -> None:
    app_id = deploy_versions(control_plane)
    put_function(control_plane, "ap-other", "de-1")
    with pytest.raises(GRPCError, match="Function 'fu-train' not found. 'train' must be created in app"):
        control_plane.rpc("AppPublish", api_pb2.AppPublishRequest(app_id=app_id, function_ids={"train": "fu-train"}))


def test_a_rollback_brings_an_earlier_version_back_as_a_new_one(control_plane: ControlPlane) -> None:
    deploy_versions(control_plane, "de-1", "de-2", "de-3")
    rolled = control_plane.modal("app", "rollback", "trainer")
    assert rolled.returncode == 0, rolled.stderr
    assert live_function(control_plane).definition_id == "de-2"
    assert control_plane.modal("app", "rollback", "trainer", "v1").returncode == 0
    assert live_function(control_plane).definition_id == "de-1"
    control_plane.restart()
    assert history(control_plane) == ["v5", "v4", "v3", "v2", "v1"]
    assert live_function(control_plane).definition_id == "de-1"

    unknown = control_plane.modal("app", "rollback", "trainer", "v9")
    assert unknown.returncode == 1 and "Version 'v9' not found" in unknown.stderr
    live = control_plane.modal("app", "rollback", "trainer", "v5")
    assert live.returncode == 1 and "v5 of app 'trainer' is the live version already" in live.stderr


def test_a_first_version_has_nothing_to_go_back_to(control_plane: ControlPlane) -> None:
    deploy_versions(control_plane, "de-1")
    rolled = control_plane.modal("app", "rollback", "trainer")
    assert rolled.returncode == 1 and "no version before v1 to go back to" in rolled.stderr


def test_a_rollover_makes_clusters_of_before_outdated(control_plane: ControlPlane) -> None:
    deploy_versions(control_plane, "de-1")
    before = app_of(control_plane).deployed_ms
    control_plane.advance(1000)
    rolled = control_plane.modal("app", "rollover", "trainer")
    assert rolled.returncode == 0, rolled.stderr
    assert app_of(control_plane).deployed_ms > before
    assert history(control_plane) == ["v2", "v1"]
    assert live_function(control_plane).definition_id == "de-1"


def test_a_staged_version_is_live_only_once_promoted(control_plane: ControlPlane) -> None:
    app_id = deploy_versions(control_plane, "de-1")
    publish(control_plane, app_id, "de-2", staged=True)
    assert live_function(control_plane).definition_id == "de-1"
    back = control_plane.modal("app", "rollback", "trainer", "v2")
    assert back.returncode == 1 and "use `modal app promote trainer v2`" in back.stderr
    promoted = control_plane.modal("app", "promote", "trainer", "v2")
    assert promoted.returncode == 0, promoted.stderr
    assert live_function(control_plane).definition_id == "de-2"
    assert history(control_plane) == ["v3", "v2", "v1"]


def test_a_redeploy_that_fails_leaves_the_live_version_as_it_was(control_plane: ControlPlane) -> None:
    app_id = deploy_versions(control_plane, "de-1")
    put_function(control_plane, app_id, "de-broken")
    reason = api_pb2.APP_DISCONNECT_REASON_DEPLOYMENT_EXCEPTION
    control_plane.rpc("AppClientDisconnect", api_pb2.AppClientDisconnectRequest(app_id=app_id, reason=reason))
    assert app_of(control_plane).app_id == app_id
    assert live_function(control_plane).definition_id == "de-1" and live_function(control_plane).published


def test_two_deployments_at_once_do_not_mix(control_plane: ControlPlane) -> None:
    app_id = deploy_versions(control_plane, "de-1")
    put_function(control_plane, app_id, "de-of-the-other")
    request = api_pb2.AppPublishRequest(
        app_id=app_id, app_state=AppState.DEPLOYED, function_ids={"train": "fu-train"}, definition_ids={"fu-train": "de-mine"}
    )
    with pytest.raises(GRPCError, match="another deployment of app 'trainer' changed 'train' meanwhile. Deploy again"):
        control_plane.rpc("AppPublish", request)
    second = control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(description="trainer", app_state=AppState.INITIALIZING)).app_id
    with pytest.raises(GRPCError, match=f"app 'trainer' was deployed as {app_id} meanwhile"):
        control_plane.rpc("AppPublish", api_pb2.AppPublishRequest(app_id=second, app_state=AppState.DEPLOYED, name="trainer"))


def test_a_version_that_no_longer_fits_the_fleet_is_warned_about(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane.server.gangs, "fleet_refuses", lambda function_id: "can never fit: 4 nodes wanted, the fleet has 2")
    app_id = deploy_versions(control_plane)
    (warning,) = publish(control_plane, app_id, "de-1").server_warnings
    assert warning.message == "train: can never fit: 4 nodes wanted, the fleet has 2"


def test_a_version_is_kept_whole_in_the_store(control_plane: ControlPlane) -> None:
    app_id = deploy_versions(control_plane, "de-1")
    before = dataclasses.replace(control_plane.server.world[AppVersion][(app_id, 1)])
    control_plane.restart()
    assert control_plane.server.world[AppVersion][(app_id, 1)] == before


@pytest.mark.parametrize("client_version", ["0.73.173", "1.0.5", "1.3.5"])
def test_older_clients_look_up_and_deploy(control_plane: ControlPlane, client_version: str) -> None:
    """What their `modal deploy` asks about apps, in their order."""

    def ask(name: str, request: Any) -> Any:
        return control_plane.rpc(name, request, client_version=client_version)

    assert not ask("AppGetByDeploymentName", api_pb2.AppGetByDeploymentNameRequest(name="trainer")).app_id
    app_id = ask("AppCreate", api_pb2.AppCreateRequest(description="trainer", app_state=AppState.INITIALIZING)).app_id
    ask("AppHeartbeat", api_pb2.AppHeartbeatRequest(app_id=app_id))
    assert ask("AppPublish", api_pb2.AppPublishRequest(app_id=app_id, app_state=AppState.DEPLOYED, name="trainer")).url
    assert ask("AppGetByDeploymentName", api_pb2.AppGetByDeploymentNameRequest(name="trainer")).app_id == app_id
    assert ask("AppLookup", api_pb2.AppLookupRequest(app_name="trainer")).app_id == app_id
    (line,) = ask("AppDeploymentHistory", api_pb2.AppDeploymentHistoryRequest(app_id=app_id)).app_deployment_histories
    assert line.client_version == client_version


def test_a_program_with_functions_is_deployed_changed_and_rolled_back(control_plane: ControlPlane) -> None:
    program = control_plane.folder / "trainer.py"

    def deploy_with(timeout: int) -> str:
        program.write_text(
            f"{PROGRAM}\n@app.function(gpu='H100:8', timeout={timeout})\n@modal.clustered(size=2)\ndef train():\n    pass\n"
            "\n@app.cls(gpu='H100:8')\n@modal.clustered(size=2)\nclass Model:\n    @modal.method()\n    def step(self):\n        pass\n"
        )
        deployed = control_plane.modal("deploy", str(program))
        assert deployed.returncode == 0, deployed.stderr
        return deployed.stdout

    def train() -> Function:
        return next(f for f in control_plane.server.world[Function].values() if f.name == "train")

    assert "App deployed" in deploy_with(600)
    first = train().function_id
    assert "no changes detected" in deploy_with(600)
    assert "App deployed" in deploy_with(700)
    assert (train().function_id, train().timeout_s, train().published) == (first, 700, True)
    assert control_plane.modal("app", "rollback", "trainer").returncode == 0
    assert (train().function_id, train().timeout_s, train().published) == (first, 600, True)
    app = app_of(control_plane)
    assert set(app.function_ids) == {"train", "Model.*"} and set(app.class_ids) == {"Model"}


def test_a_new_version_gets_the_next_inputs_and_the_old_one_ends_with_those_it_has(control_plane: ControlPlane) -> None:
    """Else a warm cluster goes on with the old code for as long as there are inputs."""
    fleet = FakeFleet(control_plane, 2)
    work = Work(fleet)
    fleet.start()
    caller = Caller(control_plane)
    caller.app_id = control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(description="trainer", app_state=AppState.INITIALIZING)).app_id

    function_id = caller.function("train", size=2, gpu=GPUS)
    request = api_pb2.AppPublishRequest(
        app_id=caller.app_id, app_state=AppState.DEPLOYED, name="trainer", function_ids={"train": function_id}
    )
    control_plane.rpc("AppPublish", request)
    old = caller.call(function_id)
    until(lambda: work.begun("train") == 2)
    control_plane.rpc("AppPublish", request)
    new = caller.call(function_id)
    work.finish("train")
    assert caller.result(old) == caller.result(new) == "train"
    first, second = (control_plane.server.calls.inputs_of(call_id)[0] for call_id in (old, new))
    assert first.attempt == second.attempt == 1 and first.assignment != second.assignment
