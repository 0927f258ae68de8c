"""A real control plane and fleet on this machine, as their user has them: `phalanx up -d`, the stock client beside it, `phalanx down`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.cli.processes import Process, read_record
from phalanx.config import Config
from phalanx.paths import Paths
from tests.harness.clients import client_python
from tests.harness.waiting import until
from tests.node.machine_state import Traces, traces

PROGRAMS = Path(__file__).parent / "programs"
NEWEST = "1.6.4"
PATIENCE_S = 100        # for one step of a story on a busy machine: a hang fails, slowness does not


@dataclass
class Ended:
    """What a program left: its exit code and all it wrote."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> dict[str, Any]:
        """What it said in lines "## name json": the program's findings, beside all that the client prints.

        They are looked for within lines too: the older clients write a rank's line and its end apart, and another thread's
        in between.
        """
        found = re.finditer(r"## (\w+) ", self.out)
        return {one[1]: json.JSONDecoder().raw_decode(self.out, one.end())[0] for one in found}

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"


class Live:
    """One control plane with its local fleet. Programs run against it with any version of the client."""

    def __init__(self, state: Path, nodes: int, runtime: str, **settings: Any) -> None:
        self.paths = Paths(state)
        self.nodes, self.runtime, self.settings = nodes, runtime, settings
        self.listen = f"127.0.0.1:{_free_port()}"

    def up(self) -> None:
        if not self.paths.config.exists():
            Config(**self.settings).with_secrets().save(self.paths.config)
        ended = self.phalanx("up", "-d", "--nodes", str(self.nodes), "--runtime", self.runtime, "--listen", self.listen)
        assert ended.code == 0, ended

    def down(self) -> None:
        ended = self.phalanx("down")
        assert ended.code == 0, ended

    def phalanx(self, command: str, *arguments: str) -> Ended:
        """A command of ours on this state folder."""
        return _run([sys.executable, "-m", "phalanx.cli.main", command, *arguments, "--state", str(self.paths.state)], self.env)

    def modal(self, *arguments: str, version: str = NEWEST, patience_s: float = PATIENCE_S, **env: str) -> Ended:
        """A command of the stock client."""
        return _run([_python(version), "-m", "modal", *arguments], self.env | env, patience_s)

    def program(self, name: str, *arguments: str, version: str = NEWEST, patience_s: float = PATIENCE_S, **env: str) -> Ended:
        """`modal run` of one of the programs beside this file; it must end well."""
        ended = self.modal("run", str(PROGRAMS / name), *arguments, version=version, patience_s=patience_s, **env)
        assert ended.code == 0, ended
        return ended

    def script(self, name: str, *arguments: str, version: str = NEWEST) -> Ended:
        """A plain Python program that uses the client as a library; it must end well."""
        ended = _run([_python(version), str(PROGRAMS / name), *arguments], self.env)
        assert ended.code == 0, ended
        return ended

    @contextmanager
    def running(self, *arguments: str, version: str = NEWEST, **env: str) -> Iterator[Client]:
        """A command of the stock client that goes on beside the test."""
        client = Client([_python(version), "-u", "-m", "modal", *arguments], _clean_environment() | self.env | env)
        try:
            yield client
        finally:
            client.end()

    @property
    def env(self) -> dict[str, str]:
        config = Config.load(self.paths.config)
        return {"MODAL_SERVER_URL": f"http://{self.listen}", "MODAL_TOKEN_ID": config.token_id, "MODAL_TOKEN_SECRET": config.token_secret,
                "MODAL_CONFIG_PATH": str(self.paths.state / "modal.toml"), "PHALANX_STATE": str(self.paths.state)}

    def status(self) -> dict[str, Any]:
        """What the server knows. It may be away for a moment: then the next answer counts."""
        def ask() -> Any:
            ended = self.phalanx("status", "--json")
            return json.loads(ended.out) if ended.code == 0 else None

        return until(ask, PATIENCE_S)

    def containers(self, function: str) -> list[str]:
        """Of a function by its name, in the order of ranks: those that are there, or not yet confirmed gone."""
        return [task for cluster in self.status()["clusters"] if cluster["function"] == function for task in cluster["containers"]]

    def wait_until_empty(self) -> None:
        """No cluster is left: every rank is gone and its node is free."""
        until(lambda: not self.status()["clusters"], PATIENCE_S)

    def pid(self, name: str) -> Process:
        """supervisor, front, server or agent."""
        return read_record(self.paths.run / "processes.json")[name]

    def kill(self, name: str) -> None:
        """kill -9, and wait until its successor is there."""
        victim = self.pid(name)
        assert victim.signal(signal.SIGKILL)
        until(lambda: self.pid(name).pid != victim.pid and self.pid(name).is_alive(), PATIENCE_S)

    def traces(self) -> Traces:
        return traces(self.paths.state, self.paths.run)


class Client:
    """A client's process and the lines that it has written so far, to both streams."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace")
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, words: str, times: int = 1) -> list[str]:
        """Lines with these words, once there are so many."""
        def enough() -> list[str] | None:
            found = [line for line in self.lines if words in line]
            assert self.process.poll() is None or len(found) >= times, f"ended without {words!r}:\n" + "\n".join(self.lines)
            return found if len(found) >= times else None

        return until(enough, PATIENCE_S)  # type: ignore[no-any-return]

    def finish(self) -> int:
        """Wait for its end; its exit code."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.finish()


def _python(version: str) -> str:
    return sys.executable if version == NEWEST else client_python(version)


def _run(command: list[str], env: dict[str, str], patience_s: float = PATIENCE_S) -> Ended:
    done = subprocess.run(command, env=_clean_environment() | env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", timeout=patience_s)
    return Ended(done.returncode, done.stdout, done.stderr)


def _clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "PHALANX_"))}
    return kept | {"NO_COLOR": "1", "COLUMNS": "200"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
