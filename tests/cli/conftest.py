"""A state folder of its own for each test, and a check that nothing of it stays behind."""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.cli import control_plane, supervisor
from phalanx.cli.processes import read_record
from phalanx.config import Config
from phalanx.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    paths = Paths(tmp_path / "state")
    yield paths
    left = [name for name, process in read_record(supervisor.record_path(paths)).items() if process.is_alive()]
    control_plane.stop(paths)
    assert not left
    assert not paths.run.exists()


@pytest.fixture
def config() -> Config:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Config(listen=f"127.0.0.1:{probe.getsockname()[1]}").with_secrets()


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, paths: Paths, config: Config) -> dict[str, list[str]]:
    """The commands start stand-ins for server and agent; the front is real."""
    script = str(Path(__file__).with_name("stand_in.py"))
    commands = supervisor.command_lines(paths)
    commands["server"] = [sys.executable, script, "server", str(paths.state)]
    commands["agent"] = [sys.executable, script, "agent", str(paths.state)]
    monkeypatch.setattr(control_plane, "start", functools.partial(control_plane.start, commands=commands))
    return commands
