"""Starts front, server and agent, starts them again after a crash, and stops them in the right order.

python -m phalanx.cli.supervisor --state DIR [--die-with PID] [--remove-state]

Runs in a session of its own, so that Ctrl-C on a terminal reaches only who started it. SIGTERM stops all and leaves nothing.
What it has to say before everything runs goes to stderr, for `phalanx up` to show.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from phalanx.cli.processes import process_of, read_record, write_record
from phalanx.config import Config
from phalanx.listening import listen_tcp, listen_unix
from phalanx.paths import Paths

PR_SET_PDEATHSIG = 1
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
HEALTHY_S = 30.0            # whoever lived as long as this starts over with the first back-off
START_S = 120.0
STOP_S = {"agent": 15.0, "server": 20.0, "front": 5.0}     # the agent has its containers' grace on top
LOG_LIMIT = 16 * 2**20
NEVER_WORKS = 78            # EX_CONFIG: an agent that was started like this will not work the next time either


class StartFailed(Exception):
    """A sentence for the user, with the end of the log where there is one."""


def record_path(paths: Paths) -> Path:
    return paths.run / "processes.json"


def ready_path(paths: Paths) -> Path:
    """Written by the server: {"pid", "listen", "ready": true}."""
    return paths.run / "server.json"


def python_path(paths: Paths) -> Path:
    """Written by `phalanx up` over a running one: the interpreter of the installation that takes over."""
    return paths.run / "python"


def log_path(paths: Paths, name: str) -> Path:
    return paths.state / f"{name}.log"


def said_grace_s(paths: Paths) -> float:
    """How long an agent that was asked to go gives its containers: a function's grace may be longer than the configuration's."""
    try:
        return int(paths.leaving.read_text()) / 1000
    except (FileNotFoundError, ValueError):
        return 0.0


def last_words(paths: Paths, name: str, lines: int = 12) -> str:
    """The end of a process's log."""
    log = log_path(paths, name)
    said = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(f"    {line}" for line in said[-lines:])


def command_lines(paths: Paths) -> dict[str, list[str]]:
    """In the order in which they start."""
    python, state = sys.executable, str(paths.state)
    return {
        "front": [python, "-m", "phalanx.front", "--state", state],
        "server": [python, "-m", "phalanx.serve", "--state", state],
        "agent": [python, "-m", "phalanx.node", "--state", state],
    }


@dataclass
class Child:
    process: asyncio.subprocess.Process
    started: float


class Supervisor:
    """Makes the listening sockets and lets the front inherit them: so the port is never closed, whoever dies."""

    def __init__(self, paths: Paths, commands: dict[str, list[str]], listen: str, grace_s: float) -> None:
        self._paths = paths
        self._commands = commands
        self._sockets = [listen_tcp(listen), listen_unix(paths.tasks_socket)]
        self._grace_s = grace_s
        self._children: dict[str, Child] = {}
        self._failures = dict.fromkeys(commands, 0)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Until `stop()`. Raises StartFailed if it can't get as far as running."""
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, self.stop)
        try:
            await self._start_all()
            os.dup2(1, 2)       # whoever started us may leave now; the rest goes to the log
            stopping = asyncio.create_task(self._stop.wait())
            watches = [asyncio.create_task(self._keep(name)) for name in self._commands]
            await asyncio.wait([stopping, *watches], return_when=asyncio.FIRST_COMPLETED)
            for watch in watches:
                watch.cancel()
            for result in await asyncio.gather(*watches, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
        finally:
            await self._stop_all()

    async def _start_all(self) -> None:
        ready_path(self._paths).unlink(missing_ok=True)
        await self._start("front")
        await self._until(self._front_listens, "front")
        await self._start("server")
        await self._until(lambda: ready_path(self._paths).exists(), "server")
        await self._start("agent")

    async def _start(self, name: str) -> None:
        command, inherited = self._command(name), [listening.fileno() for listening in self._sockets] if name == "front" else []
        if inherited:
            command = [*command, "--public-fd", str(inherited[0]), "--tasks-fd", str(inherited[1])]
        log = log_path(self._paths, name)
        if log.exists() and log.stat().st_size > LOG_LIMIT:
            log.replace(log.with_suffix(".log.1"))
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, pass_fds=inherited)
        self._children[name] = Child(process, time.monotonic())
        self._record()

    def _command(self, name: str) -> list[str]:
        command, successor = self._commands[name], python_path(self._paths)
        if command[0] == sys.executable and successor.exists():
            return [successor.read_text(), *command[1:]]
        return command

    def _record(self) -> None:
        pids = {"supervisor": os.getpid(), **{name: child.process.pid for name, child in self._children.items()}}
        found = {name: process_of(pid) for name, pid in pids.items()}
        write_record(record_path(self._paths), {name: process for name, process in found.items() if process})

    async def _until(self, condition: Callable[[], bool], name: str) -> None:
        """Wait for a sign of life of a process that has just started."""
        process = self._children[name].process
        deadline = time.monotonic() + START_S
        while not condition():
            if self._stop.is_set():
                raise StartFailed("stopped before it was up")
            if process.returncode is not None:
                raise StartFailed(f"the {name} ended at once with code {process.returncode}:\n{last_words(self._paths, name)}")
            if time.monotonic() > deadline:
                raise StartFailed(f"the {name} was not ready after {START_S:.0f} s:\n{last_words(self._paths, name)}")
            await asyncio.sleep(0.02)

    def _front_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._paths.front_socket)) == 0

    async def _keep(self, name: str) -> None:
        """Start one process again whenever it ends."""
        while True:
            child = self._children[name]
            code = await child.process.wait()
            lived = time.monotonic() - child.started
            if name == "agent" and code == NEVER_WORKS and not self._failures[name] and lived < HEALTHY_S:   # later, an upgrade left it old
                raise StartFailed(last_words(self._paths, name, lines=1).strip())
            if lived > HEALTHY_S or code == 0:      # 0: somebody asked it to end, as `phalanx up` over a running one does
                self._failures[name] = 0
            pause = BACKOFF_S[min(self._failures[name], len(BACKOFF_S) - 1)]
            self._failures[name] += 1
            self._say(f"the {name} (process {child.process.pid}) ended with code {code} after {lived:.0f} s: again in {pause} s")
            if name == "server":
                ready_path(self._paths).unlink(missing_ok=True)
            if name == "front":
                await self._end("server", 5.0)      # it ends by itself: its loan is over, and another front knows nothing of it
            await asyncio.sleep(pause)
            while name == "server" and not self._front_listens():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
            await self._start_at_last(name)

    async def _start_at_last(self, name: str) -> None:
        """A full disk or process table is no reason to take down what runs: it may have room again soon."""
        while True:
            try:
                return await self._start(name)
            except OSError as error:
                self._say(f"the {name} can't be started: {error}: again in {BACKOFF_S[-2]} s")
                await asyncio.sleep(BACKOFF_S[-2])

    async def _stop_all(self) -> None:
        """The agent first: it stops its containers while there is somebody to tell."""
        for name in reversed(self._commands):
            await self._end(name, STOP_S[name] + (self._grace_s if name == "agent" else 0.0))
        shutil.rmtree(self._paths.run, ignore_errors=True)

    async def _end(self, name: str, patience_s: float) -> None:
        child = self._children.get(name)
        if child is None or child.process.returncode is not None:
            return
        child.process.terminate()
        if await self._ended(child, patience_s):
            return
        longer_s = said_grace_s(self._paths) - self._grace_s if name == "agent" else 0.0
        if longer_s > 0 and await self._ended(child, longer_s):
            return
        self._say(f"the {name} (process {child.process.pid}) did not end within {patience_s + max(longer_s, 0):.0f} s: killed")
        child.process.kill()
        await child.process.wait()

    async def _ended(self, child: Child, patience_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.process.wait(), patience_s)
        return child.process.returncode is not None

    def _say(self, sentence: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError), log_path(self._paths, "supervisor").open("a") as log:    # its disk may be full
            print(f"{stamp} {sentence}", file=log)


def take_lock(paths: Paths) -> TextIO:
    """One supervisor a state folder. The file lies in the state, because the run folder goes away under it."""
    lock = (paths.state / "up.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise StartFailed(f"phalanx is already up with state {paths.state}: `phalanx status` shows it, `phalanx down` stops it") from error
    return lock


def refuse_leftovers(paths: Paths) -> None:
    """A supervisor that was killed left its processes behind; they hold the sockets and the database."""
    left = {name: process for name, process in read_record(record_path(paths)).items() if process.is_alive()}
    if left:
        names = ", ".join(f"{name} (process {process.pid})" for name, process in left.items())
        raise StartFailed(f"an earlier run with state {paths.state} was killed and left {names}: `phalanx down` stops them")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m phalanx.cli.supervisor", description="Keeps front, server and agent running.")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--die-with", type=int, help="stop everything when this process, our parent, ends")
    parser.add_argument("--remove-state", action="store_true", help="leave nothing at the end, not even the state folder")
    parser.add_argument("--commands", type=json.loads, help=argparse.SUPPRESS)     # tests start stand-ins
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)       # a shell's background job ignores it, and so would all containers
    if options.die_with:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != options.die_with:
            return 1
    paths = Paths(options.state)
    try:
        lock = take_lock(paths)
        refuse_leftovers(paths)
        paths.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = Config.load(paths.config)
        supervisor = Supervisor(paths, options.commands or command_lines(paths), config.listen, config.grace_ms / 1000)
        try:
            asyncio.run(supervisor.run())
        finally:
            if options.remove_state:
                shutil.rmtree(paths.state, ignore_errors=True)
        lock.close()
    except (StartFailed, ValueError, OSError) as error:
        print(error.strerror if isinstance(error, OSError) and error.strerror else error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
