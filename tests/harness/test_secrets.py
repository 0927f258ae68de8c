"""Variables that a program brings along: env= of a function, Secret.from_dict and from_local_environ (from_dotenv sends the same)."""

from __future__ import annotations

import modal
import pytest
from modal_proto import api_pb2

from phalanx.model.app import App, AppState
from phalanx.model.secret import Secret
from phalanx.model.work import Function
from tests.harness.callers import Caller
from tests.harness.clients import OLDER_CLIENTS, client_python
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.test_functions import client_packages, deploy, functions  # noqa: F401 - a fixture
from tests.harness.waiting import until

DAY_MS = 86_400_000
EVERY_FORM = """
    import inspect
    import os

    import modal

    app = modal.App("secretive")
    mine = [
        modal.Secret.from_dict({"A": "from a dict", "B": "from a dict", "NONE": None}),
        modal.Secret.from_local_environ(["FROM_HERE"]),
    ]
    env = {"env": {"B": "from env"}} if "env" in inspect.signature(app.function).parameters else {}

    @app.function(secrets=mine, **env)
    def work(): ...
"""


@pytest.mark.parametrize("version", ["1.6.4", *(pytest.param(version, marks=pytest.mark.full) for version in OLDER_CLIENTS)])
def test_a_function_gets_the_variables_of_its_secrets_the_later_one_wins(control_plane: ControlPlane, version: str) -> None:
    done = deploy(control_plane, EVERY_FORM, "" if version == modal.__version__ else client_python(version), FROM_HERE="well hidden")
    assert done.returncode == 0, done.stdout + done.stderr
    work = functions(control_plane)["work"]
    found = control_plane.server.secrets.environment(work.secret_ids)
    knows_env = version not in ("1.0.5", "0.73.173")
    assert found == {"A": "from a dict", "B": "from env" if knows_env else "from a dict", "FROM_HERE": "well hidden"}
    assert "well hidden" not in done.stdout + done.stderr
    again = deploy(control_plane, EVERY_FORM, "" if version == modal.__version__ else client_python(version), FROM_HERE="well hidden")
    assert functions(control_plane)["work"].secret_ids == work.secret_ids, "the same values are the same secret"
    assert again.returncode == 0


def test_containers_are_told_them_but_not_where_the_runner_finds_its_way(control_plane: ControlPlane) -> None:
    fleet = FakeFleet(control_plane, 1, gpu_type="", gpu_count=0)
    fleet.start()
    caller = Caller(control_plane)
    ours = {"MODAL_TASK_ID": "ta-other", "MODAL_SERVER_URL": "http://elsewhere"}
    values = {"A": "1", "OMP_NUM_THREADS": "7", "MODAL_TOKEN_ID": "ak-9"} | ours
    caller.result(caller.call(caller.function(secret_ids=[secret_of(control_plane, values)])))
    [prepare] = fleet.starts("prepare")
    environment = dict(prepare.environment)
    assert (environment["A"], environment["OMP_NUM_THREADS"], environment["MODAL_TOKEN_ID"]) == ("1", "7", "ak-9")
    assert environment["MODAL_TASK_ID"] == prepare.task_id
    assert "MODAL_SERVER_URL" not in environment
    fleet.stop()


def test_their_names_are_told_and_their_values_never(control_plane: ControlPlane) -> None:
    secret_id = secret_of(control_plane, {"PASSWORD": "well hidden"})
    told = control_plane.rpc("SecretGetInfo", api_pb2.SecretGetInfoRequest(secret_id=secret_id))
    assert list(told.metadata.keys) == ["PASSWORD"] and b"well hidden" not in told.SerializeToString()
    assert "well hidden" not in repr(control_plane.server.world[Secret][secret_id])


def test_other_values_for_a_class_take_the_place_of_its_own(control_plane: ControlPlane) -> None:
    caller = Caller(control_plane)
    own, other = secret_of(control_plane, {"A": "own"}), secret_of(control_plane, {"A": "other"})
    function_id = caller.function(secret_ids=[own])
    options = api_pb2.FunctionOptions(secret_ids=[other], replace_secret_ids=True)
    request = api_pb2.FunctionBindParamsRequest(function_id=function_id, function_options=options)
    bound = control_plane.rpc("FunctionBindParams", request).bound_function_id
    world = control_plane.server.world
    assert (world[Function][function_id].secret_ids, world[Function][bound].secret_ids) == ([own], [other])


@pytest.mark.parametrize(("values", "sentence"), [
    ({"A=B": "x"}, "'A=B' in a secret can't be the name of an environment variable"), ({"A": "x\0y"}, "the value of 'A' has a zero byte"),
    ({"A": "x" * 140_000}, "the value of 'A' makes a variable of 140002 bytes, and 131000 are possible"),
])  # fmt: skip
def test_what_is_no_variable_is_refused_without_its_value(control_plane: ControlPlane, values: dict[str, str], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence) as refused:
        secret_of(control_plane, values)
    assert "xxx" not in str(refused.value)


def test_they_go_when_no_function_names_them_any_more(control_plane: ControlPlane) -> None:
    caller = Caller(control_plane)
    used, unused = secret_of(control_plane, {"A": "used"}), secret_of(control_plane, {"A": "unused"})
    caller.function(secret_ids=[used])
    world = control_plane.server.world
    secrets = world[Secret]
    control_plane.change(lambda unit: setattr(world[App][caller.app_id], "state", AppState.DEPLOYED))
    control_plane.server.purging.keep_ms = DAY_MS // 24
    control_plane.advance(DAY_MS // 12)
    until(lambda: set(secrets) == {used})
    assert unused not in secrets
    caller.stop()
    until(lambda: world[App][caller.app_id].drained)
    control_plane.advance(DAY_MS // 12)
    until(lambda: not secrets)


def secret_of(plane: ControlPlane, values: dict[str, str]) -> str:
    request = api_pb2.SecretGetOrCreateRequest(object_creation_type=api_pb2.OBJECT_CREATION_TYPE_EPHEMERAL, env_dict=values)
    return str(plane.rpc("SecretGetOrCreate", request).secret_id)
