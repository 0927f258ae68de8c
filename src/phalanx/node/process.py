"""Containers without any privilege: plain processes of this user, under the shim as subreaper. stdlib only.

No namespaces: the layers' files are linked into a folder of the container's own, which HOME, PYTHONPATH and the working folder point into.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time

from .cgroups import MemoryUse
from .runtime import Runtime, RuntimeFault
from .spec import Spec

# Says whose a process is, when the shim that was its parent is gone.
MARK = "PHALANX_CONTAINER"


class ProcessRuntime(Runtime):
    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.group = 0
        self.oom_kills = 0
        self.peak = 0

    def prepare(self) -> None:
        """Nothing: the agent has laid out the folder."""

    def start(self, stdout: int, stderr: int) -> int:
        spec = self.spec
        try:
            process = subprocess.Popen(
                spec.command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=spec.working_folder,
                env=spec.environment | {MARK: spec.cgroup}, start_new_session=True, preexec_fn=_raise_limits)
        except OSError as error:
            raise RuntimeFault(f"{spec.command[0]} can't be started: {error.strerror}") from error
        process.returncode = 0        # the shim waits for it; Popen must not
        self.group = process.pid
        return process.pid

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def lingering(self) -> bool:
        return any(group == self.group and state != "Z" for _, _, group, state in _table())

    def kill(self) -> bool:
        """Again and again until none is left: a process may fork while we look."""
        deadline = time.monotonic() + 10.0
        while pids := self._mine():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def memory_use(self) -> MemoryUse:
        return MemoryUse(self.oom_kills, self.peak, self.spec.limits.memory_bytes)

    def watch_memory(self) -> bool:
        """Sum what the container's processes hold, each page once; kill them above the limit. True when that happened."""
        used = sum(_proportional_bytes(pid) for pid in self._mine())
        self.peak = max(self.peak, used)
        limit = self.spec.limits.memory_bytes
        if not limit or used <= limit or self.oom_kills:
            return False
        self.oom_kills = 1
        self.kill()
        return True

    def release(self) -> str:
        return "" if self.kill() else f"processes {sorted(self._mine())} that SIGKILL does not end"

    def _mine(self) -> set[int]:
        """Living descendants of the shim, or, when this is not the shim, processes that carry the container's mark."""
        rows = [row for row in _table() if row[3] != "Z"]
        if self.group:
            children: dict[int, list[int]] = {}
            for pid, parent, _, _ in rows:
                children.setdefault(parent, []).append(pid)
            found: set[int] = set()
            queue = list(children.get(os.getpid(), ()))
            while queue:
                pid = queue.pop()
                found.add(pid)
                queue += children.get(pid, ())
            return found
        mark = f"{MARK}={self.spec.cgroup}".encode()
        return {pid for pid, _, _, _ in rows if pid != os.getpid() and mark in _environment(pid)}


def _raise_limits() -> None:
    """As far as this user may: the soft limits up to the hard ones."""
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (hard, hard))


def _table() -> list[tuple[int, int, int, str]]:
    """(pid, parent, process group, state) of every process of the machine that we may see."""
    rows = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            rows.append((int(name), int(fields[1]), int(fields[2]), fields[0]))
    return rows


def _environment(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().split(b"\0")
    return []


def _proportional_bytes(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
