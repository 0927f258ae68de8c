"""phalanx login writes one profile and keeps everything else of the client's configuration."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from phalanx.cli.main import main
from phalanx.config import Config
from phalanx.paths import Paths

THEIRS = '''# my tokens
[work]
token_id = "ak-work"      # from the dashboard
token_secret = "as-work"
active = true

[home]
token_id = "ak-home"
token_secret = "as-home"
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "modal.toml"
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(file))
    return file


def login(paths: Paths, *arguments: str) -> Result:
    Config(listen="127.0.0.1:8911", token_id="ak-x", token_secret="as-x").with_secrets().save(paths.config)
    return CliRunner().invoke(main, ["login", "--state", str(paths.state), *arguments])


def test_the_first_profile_becomes_active(paths: Paths, file: Path) -> None:
    assert login(paths).exit_code == 0
    profile = {"server_url": "http://127.0.0.1:8911", "token_id": "ak-x", "token_secret": "as-x", "active": True}
    assert tomllib.loads(file.read_text()) == {"phalanx": profile}
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_a_terminal_nothing_is_asked_and_the_active_profile_stays(paths: Paths, file: Path) -> None:
    file.write_text(THEIRS)
    said = login(paths)
    assert "'work' stays active" in said.output
    assert file.read_text().startswith(THEIRS.replace("active = true\n", "").replace("[work]\n", "[work]\nactive = true\n"))
    assert tomllib.loads(file.read_text())["work"]["active"] is True
    assert "active" not in tomllib.loads(file.read_text())["phalanx"]


def test_activate_moves_the_mark_and_keeps_the_rest_with_its_comments(paths: Paths, file: Path) -> None:
    file.write_text(THEIRS)
    login(paths, "--activate")
    profiles = tomllib.loads(file.read_text())
    assert profiles["phalanx"]["active"] is True
    assert profiles["work"] == {"token_id": "ak-work", "token_secret": "as-work"}
    assert "# from the dashboard" in file.read_text()


def test_again_changes_only_its_own_profile(paths: Paths, file: Path) -> None:
    file.write_text(THEIRS)
    login(paths, "--no-activate")
    once = file.read_text()
    login(paths, "--no-activate")
    assert file.read_text() == once


def test_a_lone_default_profile_is_marked_because_the_client_does_not_guess_between_two(paths: Paths, file: Path) -> None:
    file.write_text('[default]\ntoken_id = "ak-1"\ntoken_secret = "as-1"\n')
    login(paths)
    assert active_by_the_client(file) == "default"
    login(paths, "--activate")
    assert active_by_the_client(file) == "phalanx"


def test_a_file_that_is_no_toml_is_left_alone(paths: Paths, file: Path) -> None:
    file.write_text("[work\n")
    said = login(paths)
    assert said.exit_code == 1 and "is not valid TOML" in said.output
    assert file.read_text() == "[work\n"


def test_toml_that_cannot_be_edited_by_lines_is_left_alone(paths: Paths, file: Path) -> None:
    file.write_text('work = {token_id = "ak-1", active = true}\n')
    said = login(paths, "--activate")
    assert said.exit_code == 1 and "add this yourself" in said.output
    assert "phalanx" not in file.read_text()


def test_without_a_control_plane(paths: Paths, file: Path) -> None:
    said = CliRunner().invoke(main, ["login", "--state", str(paths.state)])
    assert said.exit_code == 1 and "`phalanx up` makes one" in said.output


def active_by_the_client(file: Path) -> str:
    program = "from modal.config import _profile, _check_config; _check_config(); print(_profile)"
    return subprocess.run([sys.executable, "-c", program], env=os.environ, check=True, capture_output=True, text=True).stdout.strip()
