"""Bring a control plane up, find a running one, bring it down: what `up`, `down`, `run` and `status` share."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from phalanx.cli.admin import AdminError, call, reachable
from phalanx.cli.processes import Process, read_record
from phalanx.cli.supervisor import START_S, STOP_S, last_words, ready_path, record_path, said_grace_s
from phalanx.config import Config
from phalanx.paths import Paths, default_state

JOIN_S = 60.0
STOP_MARGIN_S = 10.0


@dataclass
class Running:
    """A control plane that answers."""

    paths: Paths
    config: Config
    listen: str

    @property
    def url(self) -> str:
        return f"http://{reachable(self.listen)}"

    def client_environment(self) -> dict[str, str]:
        return {"MODAL_SERVER_URL": self.url, "MODAL_TOKEN_ID": self.config.token_id, "MODAL_TOKEN_SECRET": self.config.token_secret}

    def status(self) -> dict[str, Any]:
        return call(self.listen, self.config, "Status")

    def nodes(self) -> list[dict[str, Any]]:
        """Those whose agent is there; the server remembers others from before."""
        return [node for node in self.status().get("nodes") or [] if not str(node.get("state", "")).startswith("down")]


def state_option(command: Callable[..., Any]) -> Callable[..., Any]:
    folder = click.Path(file_okay=False, path_type=Path)
    where = "$PHALANX_STATE, else ~/.local/share/phalanx"
    return click.option("--state", type=folder, default=default_state, show_default=where, help="The control plane's folder.")(command)


def load_config(paths: Paths) -> Config:
    """The state's configuration, or a fresh one. A mistake in the file is the user's to mend."""
    try:
        return Config.load(paths.config).with_secrets()
    except FileNotFoundError:
        return Config().with_secrets()
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def find(paths: Paths) -> Running | None:
    """The control plane of this state, if its server is ready; one whose supervisor was killed, too."""
    living = _living(paths)
    listen = _ready_listen(paths)
    if listen is None or not living.keys() & {"supervisor", "server"}:
        return None
    return Running(paths, load_config(paths), listen)


def why_none(paths: Paths) -> str:
    """What to tell somebody who wants a control plane where `find` finds none."""
    living = _living(paths)
    if "supervisor" not in living:
        return what_is_left(paths) or f"nothing is up with state {paths.state}: start it with `phalanx up`, or name another with --state"
    return f"the server of {paths.state} is starting; clients wait for it. Its last words:\n{last_words(paths, 'server')}"


def what_is_left(paths: Paths) -> str:
    """What goes on without a supervisor, and what to do about it; "" where there is one, or nothing."""
    living = _living(paths)
    if "supervisor" in living:
        return ""
    if living:
        names = ", ".join(f"{name} (process {process.pid})" for name, process in living.items())
        also = "containers go on too" if "agent" in living else "containers may go on too"
        return (f"the supervisor of {paths.state} was killed: {names} and its {also}, but nothing starts again what ends. "
                "`phalanx down` stops all of it; `phalanx up` begins anew after that")
    if paths.agents_run.exists():
        return (f"every process of {paths.state} was killed, and containers of it may go on: `phalanx up` takes them over, "
                "`phalanx down` removes them")
    return ""


def start(paths: Paths, config: Config, die_with_us: bool, remove_state: bool = False,
          commands: dict[str, list[str]] | None = None) -> Running:
    """Start all and wait until the server answers and the agent has joined. Raises ClickException with what went wrong."""
    try:
        paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = Config.load(paths.config) if paths.config.exists() else None
        config.save(paths.config)
    except OSError as error:
        said = f"can't write to the state folder {paths.state}: {error.strerror}; choose another with --state"
        raise click.ClickException(said) from error
    command = [sys.executable, "-m", "phalanx.cli.supervisor", "--state", str(paths.state)]
    if die_with_us:
        command += ["--die-with", str(os.getpid())]
    if remove_state:
        command += ["--remove-state"]
    if commands:
        command += ["--commands", json.dumps(commands)]
    with (paths.state / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        return _wait(paths, config, process)
    except BaseException:
        process.terminate()     # it stops what it started, and only that
        process.wait()
        if before is not None and paths.config.exists():
            before.save(paths.config)       # or the next `up` without options would fail of what this one was given
        raise


def stop(paths: Paths) -> list[str]:
    """Stop the supervisor, which stops the rest; or the rest, where it was killed. Names of what had to be stopped."""
    record = _living(paths)
    patience_s = sum(STOP_S.values()) + _grace_s(paths) + STOP_MARGIN_S
    supervisor = record.get("supervisor")
    if supervisor is not None:
        supervisor.signal(signal.SIGTERM)
        if not supervisor.wait(patience_s) and not supervisor.wait(said_grace_s(paths) - _grace_s(paths)):
            raise click.ClickException(f"the supervisor (process {supervisor.pid}) is still busy after {patience_s:.0f} s: see "
                                       f"{paths.state / 'supervisor.log'}")
        return list(record)
    for name in ("agent", "server", "front"):
        if name in record:
            _end(paths, name, record[name], patience_s)
    stopped = list(record)
    if paths.agents_run.exists():       # an agent that was killed: its containers have nobody else to end them
        subprocess.run([sys.executable, "-m", "phalanx.node", "--state", str(paths.state), "--clean"], stdin=subprocess.DEVNULL)
        stopped.append("what a killed agent had left")
    shutil.rmtree(paths.run, ignore_errors=True)
    return stopped


def _living(paths: Paths) -> dict[str, Process]:
    """Those of this control plane's processes that are there."""
    return {name: process for name, process in read_record(record_path(paths)).items() if process.is_alive()}


def _grace_s(paths: Paths) -> float:
    """A configuration that has a mistake by now keeps nobody from stopping."""
    try:
        return Config.load(paths.config).grace_ms / 1000
    except (OSError, ValueError):
        return Config().grace_ms / 1000


def _end(paths: Paths, name: str, process: Process, patience_s: float) -> None:
    process.signal(signal.SIGTERM)
    if process.wait(patience_s) or (name == "agent" and process.wait(said_grace_s(paths) - _grace_s(paths))):
        return
    process.signal(signal.SIGKILL)
    process.wait(STOP_MARGIN_S)


def _wait(paths: Paths, config: Config, process: subprocess.Popen[str]) -> Running:
    deadline = time.monotonic() + 2 * START_S
    while (listen := _ready_listen(paths, process.pid)) is None:
        _check(paths, process)
        if time.monotonic() > deadline:
            raise click.ClickException(f"the server was not ready after {2 * START_S:.0f} s: see {paths.state}/*.log")
        time.sleep(0.05)
    running = Running(paths, config, listen)
    deadline = time.monotonic() + JOIN_S
    while not _joined(running):
        _check(paths, process)
        if time.monotonic() > deadline:
            raise click.ClickException(f"no node joined within {JOIN_S:.0f} s; the agent's last words:\n{last_words(paths, 'agent')}")
        time.sleep(0.1)
    return running


def _check(paths: Paths, process: subprocess.Popen[str]) -> None:
    """What a supervisor that ended said: to us, or, once its server was up, to its log."""
    if process.poll() is not None:
        assert process.stderr is not None
        said = process.stderr.read().strip() or last_words(paths, "supervisor", lines=1).strip()
        raise click.ClickException(said or f"the supervisor ended with code {process.returncode}")


def _joined(running: Running) -> bool:
    try:
        return bool(running.nodes())
    except AdminError:
        return False


def _ready_listen(paths: Paths, supervisor_pid: int | None = None) -> str | None:
    """Where the server serves, once it does; of this supervisor, not of one before."""
    if supervisor_pid is not None:
        supervisor = read_record(record_path(paths)).get("supervisor")
        if supervisor is None or supervisor.pid != supervisor_pid:
            return None
    try:
        said = json.loads(ready_path(paths).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return said["listen"] if said.get("ready") else None
