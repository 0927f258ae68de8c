"""Who am I, and where: tokens, workspace, environments, by the stock command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

import pytest
from google.protobuf.empty_pb2 import Empty
from modal._utils.auth_token_manager import _AuthTokenManager
from modal_proto import api_pb2

from tests.harness.control_plane import ControlPlane


def test_a_wrong_token_is_refused_with_what_to_do(control_plane: ControlPlane) -> None:
    listed = control_plane.modal("app", "list", MODAL_TOKEN_ID="ak-else")
    assert listed.returncode == 1
    assert "token 'ak-else' is not of this Phalanx server" in listed.stderr


def test_the_client_shows_its_token_and_workspace(control_plane: ControlPlane) -> None:
    shown = control_plane.modal("token", "info")
    assert shown.returncode == 0, shown.stderr
    assert control_plane.config.token_id in shown.stdout
    assert "local" in shown.stdout


def test_a_token_is_set_and_verified(control_plane: ControlPlane) -> None:
    config = control_plane.config
    done = control_plane.modal("token", "set", "--token-id", config.token_id, "--token-secret", config.token_secret)
    assert done.returncode == 0, done.stderr
    assert "Token verified successfully" in done.stdout
    written = (control_plane.folder / "modal.toml").read_text()
    assert "[local]" in written and config.token_id in written


def test_a_new_token_is_fetched_on_the_login_page(control_plane: ControlPlane) -> None:
    environment = {name: value for name, value in control_plane.env.items() if not name.startswith("MODAL_TOKEN")}
    client = subprocess.Popen(
        [sys.executable, "-m", "modal", "token", "new"],
        env={"PATH": "/nonexistent", "NO_COLOR": "1", "COLUMNS": "200", "PYTHONUNBUFFERED": "1", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        page = _first_match(client, rf"{control_plane.url}/login/\S+")
        code = _first_match(client, r"Enter this code: (\w+)")
        with urllib.request.urlopen(page) as answer:
            assert code in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(page, _form(token_id=control_plane.config.token_id, token_secret="as-guessed"))
        right = _form(token_id=control_plane.config.token_id, token_secret=control_plane.config.token_secret)
        with urllib.request.urlopen(page, right) as answer:
            assert "Done" in answer.read().decode()
        rest, _ = client.communicate(timeout=60)
        assert client.returncode == 0, rest
        assert control_plane.config.token_secret in (control_plane.folder / "modal.toml").read_text()
    finally:
        client.kill()
        client.wait()


def test_a_login_nobody_began_is_refused(control_plane: ControlPlane) -> None:
    with pytest.raises(Exception, match="begin again with `modal token new`"):
        control_plane.rpc("TokenFlowWait", api_pb2.TokenFlowWaitRequest(token_flow_id="tf-none", timeout=1))


def test_the_auth_token_says_when_it_expires(control_plane: ControlPlane) -> None:
    token = control_plane.rpc("AuthTokenGet", api_pb2.AuthTokenGetRequest()).token
    claims = _AuthTokenManager(None)._decode_jwt(token)
    assert claims["exp"] * 1000 > control_plane.server.now_ms()


@pytest.mark.parametrize(
    ("client_version", "builder"),
    [("0.73.173", "2024.10"), ("1.0.5", "2024.10"), ("1.3.5", "2025.06"), ("1.6.4", "2026.10"), ("1.7.0.dev3", "2026.10"), ("", "2024.10")],
)
def test_each_client_gets_an_image_builder_it_knows(control_plane: ControlPlane, client_version: str, builder: str) -> None:
    hello = control_plane.rpc("ClientHello", Empty(), client_version=client_version)
    assert hello.image_builder_version == builder
    environment = control_plane.rpc("EnvironmentGetOrCreate", api_pb2.EnvironmentGetOrCreateRequest(), client_version=client_version)
    assert environment.metadata.name == "main"
    assert environment.metadata.settings.image_builder_version == builder


def test_environments_are_made_renamed_and_deleted(control_plane: ControlPlane) -> None:
    def names() -> list[str]:
        return [row["name"] for row in json.loads(control_plane.modal("environment", "list", "--json").stdout)]

    assert names() == ["main"]
    assert control_plane.modal("environment", "create", "dev").returncode == 0
    assert names() == ["main", "dev"]
    again = control_plane.modal("environment", "create", "dev")
    assert again.returncode == 1 and "environment 'dev' exists already" in again.stderr

    assert control_plane.modal("app", "list", "--env", "dev").returncode == 0
    unknown = control_plane.modal("app", "list", "--env", "prod")
    assert unknown.returncode == 1 and "Environment 'prod' not found. There are: dev, main" in unknown.stderr

    assert control_plane.modal("environment", "update", "dev", "--set-name", "staging").returncode == 0
    control_plane.restart()
    assert names() == ["main", "staging"]
    assert control_plane.modal("environment", "delete", "staging", "--yes").returncode == 0
    assert names() == ["main"]
    default = control_plane.modal("environment", "delete", "main", "--yes")
    assert default.returncode == 1 and "is the default and can't be deleted" in default.stderr


def test_restricted_environments_are_refused(control_plane: ControlPlane) -> None:
    refused = control_plane.modal("environment", "create", "dev", "--restricted")
    assert refused.returncode == 1
    assert "this workspace has one user" in refused.stderr


def _first_match(process: subprocess.Popen[str], pattern: str) -> str:
    """Read the client's output up to the first line that has it; the group if there is one."""
    seen = []
    assert process.stdout is not None
    for line in process.stdout:
        seen.append(line)
        found = re.search(pattern, line)
        if found:
            return found.group(found.re.groups)
    raise AssertionError(f"{pattern} is not in the client's output:\n{''.join(seen)}")


def _form(**fields: str) -> bytes:
    return urllib.parse.urlencode(fields).encode()
