"""Daemons that a peer needs: started in the foreground as our children, ended by their process ids, whatever they forked included."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SETTLE_S, SAMPLE_S = 20.0, 0.4
BUSY = 0.4          # of one core; sixteen idle Ray nodes use 0.16


def adopt_orphans() -> None:
    """From now on, what our descendants leave behind becomes our child, so that `end_descendants` finds it."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, itself not included."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def settle() -> None:
    """Wait until our descendants are idle: a peer that replaces its workers after a round would slow down whoever comes next."""
    deadline = time.monotonic() + SETTLE_S
    used = _cpu_used()
    while time.monotonic() < deadline:
        time.sleep(SAMPLE_S)
        before, used = used, _cpu_used()
        if used - before < BUSY * SAMPLE_S:
            return


def end_descendants(roots: Sequence[int], patience_s: float = 5.0) -> None:
    """Stop these children and all below them: SIGTERM to the roots, then SIGKILL to whatever of the tree is left."""
    tree = set(roots).union(*(descendants(root) for root in roots))
    for root in roots:
        _signal(root, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while _alive(tree) and time.monotonic() < deadline:
        time.sleep(0.05)
    while left := _alive(tree):
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.05)


def reap_orphans() -> list[str]:
    """End what is still below us, once all peers have stopped; returns the command lines."""
    names = []
    while left := _alive(set(descendants(os.getpid()))):
        for pid in left:
            names.append(_command_line(pid))
            _signal(pid, signal.SIGKILL)
        time.sleep(0.05)
    return [name for name in names if name]


def free_ports(count: int) -> int:
    """The first of `count` ports in a row below the ephemeral range that nobody listens on."""
    for first in range(21000, 32000, count):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise OSError(f"no {count} free ports in a row between 21000 and 32000")


class Daemon:
    """One process in the foreground with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True)
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None


def _cpu_used() -> float:
    """Seconds that all descendants alive have used so far."""
    total = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _alive(pids: set[int]) -> set[int]:
    """Those that still run. Zombies of ours are reaped on the way; anybody else's zombie counts as ended."""
    alive = set()
    for pid in pids:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                continue
        except ChildProcessError:
            pass
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            alive.add(pid)
    return alive


def _signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
