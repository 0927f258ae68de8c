"""A real agent against a fake server, and a look at the machine before and after."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.config import Config
from phalanx.node import programs
from phalanx.node.gpus import find_gpus
from phalanx.paths import Paths

from .fake_server import FakeServer

RUNTIMES = [pytest.param("crun", marks=pytest.mark.root), "process"]
two_nodes = pytest.mark.skipif(find_gpus().count > 0, reason="with real GPUs this machine is one node")
SOMEBODY = 12345       # a user that no machine has: root's tests become it


class AgentProcess:
    """`python -m phalanx.node` on a state folder of the test's own; `command` begins its command line, `run` is its folder of sockets."""

    def __init__(
        self, state: Path, runtime: str, nodes: int = 2, command: tuple[str, ...] = (sys.executable,), options: tuple[str, ...] = ()
    ) -> None:
        self.paths = Paths(state)
        self.runtime, self.nodes, self.command, self.options = runtime, nodes, command, options
        Config(join_secret="let me in", grace_ms=5000).save(self.paths.config)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.paths.state / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "-m", "phalanx.node", "--state", str(self.paths.state), "--runtime", self.runtime,
                 "--nodes", str(self.nodes), *self.options], stdout=log, stderr=log, start_new_session=True)

    def registered(self, server: FakeServer) -> None:
        """Wait until this agent has registered and its network stands: it sends heartbeats then."""
        before = server.heartbeats
        server.until(lambda: server.heartbeats > before or self.process is not None and self.process.poll() is not None, self.log)
        assert self.process is not None
        assert self.process.poll() is None, self.log()

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

    def clean(self) -> int:
        return subprocess.run(
            [*self.command, "-m", "phalanx.node", "--state", str(self.paths.state), "--runtime", self.runtime, "--clean"]).returncode

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
    if runtime != "process" and (os.geteuid() != 0 or programs.find(runtime) is None):
        pytest.skip(f"needs root and {runtime}")
    yield from running(AgentProcess(state, runtime), server)


def running(process: AgentProcess, server: FakeServer) -> Iterator[AgentProcess]:
    process.start()
    try:
        process.registered(server)
        yield process
    finally:
        if process.process is None:
            process.start()
            process.registered(server)
        assert process.stop() == 0, process.log()


@pytest.fixture
def users_state() -> Iterator[Path]:
    """A folder of somebody else's: pytest's own folders are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="phalanx-test-", dir="/tmp"))
    os.chown(folder, SOMEBODY, SOMEBODY)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def users_server(users_state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """For an agent of an ordinary user: sockets below /tmp, open to it."""
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)       # Paths looks at it
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    socket = Paths(users_state).tasks_socket
    socket.parent.mkdir()
    fake = FakeServer(socket)
    for path in (socket, socket.parent):
        os.chown(path, SOMEBODY, SOMEBODY)
    yield fake
    fake.close()
    socket.parent.rmdir()


@pytest.fixture
def somebody() -> tuple[str, ...]:
    """The command line that makes us an ordinary user with a Python that has what the agent needs. Skips where there is none."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become somebody else")
    become = ("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
              "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=" + ":".join(path for path in sys.path if path))
    for python in (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3", "/usr/local/bin/python3"):
        code = f"import sys, grpclib, google.protobuf, phalanx; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        if subprocess.run([*become, python, "-c", code], capture_output=True).returncode == 0:
            return (*become, python)
    pytest.skip(f"no Python {sys.version_info[0]}.{sys.version_info[1]} that an ordinary user can run with our packages")
