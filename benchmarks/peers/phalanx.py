"""Phalanx on this machine, through the stock client: `phalanx up`, a deployed clustered function, `.remote()`.

And the stateless server, called by the same client, which says how much of a warm call is the client's own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peers.daemons import Daemon, end_descendants, free_ports
from peers.driver import Driver
from peers.peer import RoundFailed, Timing, output_of

HERE = Path(__file__).parent
APP_FILE = HERE / "clustered_app.py"
FREE_S = 60.0
STATELESS, STATELESS_WITH_RANKS = "stateless server", "stateless server, with ranks"


class Phalanx:
    launches = (True,)      # its ranks are the runner
    has_warm = True

    def __init__(self, runtime: str) -> None:
        self.name = f"Phalanx ({runtime})"
        self._runtime = runtime
        self._driver: Driver | None = None
        self._state: Path | None = None
        self._warm_calls: dict[str, float] = {}

    def missing(self) -> str:
        if self._runtime == "process":
            return ""
        if os.geteuid() != 0:
            return "needs root"
        return "" if shutil.which(self._runtime) else "not installed"

    def version(self) -> str:
        commit = output_of("git", "-C", str(HERE), "describe", "--always", "--dirty")
        return f"phalanx {commit}, modal {output_of(sys.executable, '-c', 'import modal; print(modal.__version__)')}" + (
            f", {output_of(self._runtime, '--version').splitlines()[0]}" if self._runtime != "process" else "")

    def start(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._state = folder / "state"
        port = free_ports(1)
        self._phalanx("up", "-d", "--nodes", str(size), "--runtime", self._runtime, "--listen", f"127.0.0.1:{port}")
        config = json.loads((self._state / "config.json").read_text())
        env = _without_modal() | {
            "MODAL_SERVER_URL": f"http://127.0.0.1:{port}", "MODAL_TOKEN_ID": config["token_id"],
            "MODAL_TOKEN_SECRET": config["token_secret"], "MODAL_CONFIG_PATH": str(folder / "modal.toml"),
        }  # fmt: skip
        subprocess.run([sys.executable, "-m", "modal", "deploy", str(APP_FILE)], env=env | {"BENCH_SIZE": str(size)}, check=True,
                       stdin=subprocess.DEVNULL, capture_output=True, cwd=folder)  # fmt: skip
        self._driver = Driver([sys.executable, str(HERE / "modal_driver.py")], folder / "driver.log", env)
        self.round(size, runner=True)

    def round(self, size: int, runner: bool) -> Timing:
        """Cold: no cluster is there, and all nodes are free."""
        call = self._ask(do="call", app=f"bench-launch-{size}", function="cold", arguments=[])
        stamps = self._ask(do="stamps", app=f"bench-launch-{size}", function="cold", names=[call["name"]], size=size)
        self._until_free()
        return Timing(max(stamps[call["name"]]) - call["called"], call["result"])

    def warm_round(self, size: int) -> Timing:
        """On a cluster that is there."""
        call = self._ask(do="call", app=f"bench-launch-{size}", function="warm", arguments=[False])
        self._warm_calls[call["name"]] = call["called"]
        return Timing(None, call["result"])

    def warm_times_in_code(self, size: int) -> list[float]:
        """For each warm call so far: seconds from the call to its last rank's first statement."""
        names = list(self._warm_calls)
        self._ask(do="call", app=f"bench-launch-{size}", function="warm", arguments=[True])
        stamps = self._ask(do="stamps", app=f"bench-launch-{size}", function="warm", names=names, size=size)
        return [max(stamps[name]) - called for name, called in self._warm_calls.items()]

    def stop(self) -> None:
        if self._driver:
            self._driver.close()
        if self._state and self._state.exists():
            self._phalanx("down")
        self._driver = self._state = None
        self._warm_calls = {}

    def _ask(self, **question: Any) -> dict[str, Any]:
        return self._driver.ask(**question)

    def _phalanx(self, *arguments: str) -> str:
        done = subprocess.run([sys.executable, "-m", "phalanx.cli.main", *arguments, "--state", str(self._state)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)  # fmt: skip
        if done.returncode != 0:
            raise RoundFailed(f"phalanx {' '.join(arguments)}: {done.stdout[-400:]}{done.stderr[-800:]}")
        return done.stdout

    def _until_free(self) -> None:
        deadline = time.monotonic() + FREE_S
        while clusters := json.loads(self._phalanx("status", "--json"))["clusters"]:
            if time.monotonic() > deadline:
                raise RoundFailed(f"the cluster of the last cold call has not gone after {FREE_S:.0f} s: {clusters}")
            time.sleep(0.2)


class StatelessServer:
    """The same client against a server that answers at once, or as soon as as many stock runners have done the work."""

    launches = ()
    has_warm = True

    def __init__(self, with_ranks: bool) -> None:
        self.name = STATELESS_WITH_RANKS if with_ranks else STATELESS
        self._with_ranks = with_ranks
        self._server: Daemon | None = None
        self._driver: Driver | None = None

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return "this folder's, with the same modal and grpclib"

    def start(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True)
        said = folder / "said.json"
        self._server = Daemon([sys.executable, str(HERE / "stateless.py"), str(said), *([str(size)] if self._with_ranks else [])],
                              folder / "server.log", _without_modal())
        deadline = time.monotonic() + 20
        while not said.exists() or not said.read_text():
            if self._server.ended or time.monotonic() > deadline:
                raise RoundFailed(f"the stateless server did not start: {self._server.log.read_text()[-400:]}")
            time.sleep(0.05)
        env = _without_modal() | {
            "MODAL_SERVER_URL": f"http://127.0.0.1:{json.loads(said.read_text())['port']}", "MODAL_TOKEN_ID": "ak-bench",
            "MODAL_TOKEN_SECRET": "as-bench", "MODAL_CONFIG_PATH": str(folder / "modal.toml"),
        }  # fmt: skip
        self._driver = Driver([sys.executable, str(HERE / "modal_driver.py")], folder / "driver.log", env)
        self.warm_round(size)

    def round(self, size: int, runner: bool) -> Timing:
        raise NotImplementedError

    def warm_round(self, size: int) -> Timing:
        return Timing(None, self._driver.ask(do="call", app="bench", function="warm", arguments=[False])["result"])

    def stop(self) -> None:
        if self._driver:
            self._driver.close()
        if self._server:
            end_descendants([self._server.pid])
        self._driver = self._server = None


def _without_modal() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "PHALANX_"))}
