"""A real agent against a fake server, and a look at the machine before and after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.config import Config
from phalanx.paths import Paths

from .fake_server import FakeServer

RUNTIMES = [pytest.param("crun", marks=pytest.mark.root), "process"]


class AgentProcess:
    """`python -m phalanx.node` on a state folder of the test's own."""

    def __init__(self, state: Path, runtime: str, nodes: int = 2) -> None:
        self.paths = Paths(state)
        self.runtime, self.nodes = runtime, nodes
        Config(join_secret="let me in", grace_ms=5000).save(self.paths.config)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.paths.state / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "phalanx.node", "--state", str(self.paths.state), "--runtime", self.runtime,
                 "--nodes", str(self.nodes)], stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """As a crash would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        """As `phalanx down` does."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.process = None
        return code

    def log(self) -> str:
        return (self.paths.state / "agent.log").read_text()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def server(state: Path) -> Iterator[FakeServer]:
    fake = FakeServer(Paths(state).tasks_socket)
    yield fake
    fake.close()
    run = Paths(state).run
    if run.exists() and not list(run.iterdir()):
        run.rmdir()


@pytest.fixture(params=RUNTIMES)
def agent(request: pytest.FixtureRequest, state: Path, server: FakeServer) -> Iterator[AgentProcess]:
    """An agent that has registered, on each runtime; stopped at the end, after which nothing may be left."""
    runtime = request.param
    if runtime != "process" and os.geteuid() != 0:
        pytest.skip("needs root")
    process = AgentProcess(state, runtime)
    process.start()
    try:
        server.until(lambda: server.heartbeats > 0, process.log)     # its network stands then
        yield process
    finally:
        if process.process is None:
            process.start()
            server.until(lambda: len(server.registers) > 1, process.log)
        assert process.stop() == 0, process.log()
