"""Containers without any privilege: plain processes of this user, under the shim as subreaper. stdlib only.

No namespaces: the layers' files are linked into a folder of the container's own, which HOME, PYTHONPATH and the working folder point into.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time

from . import forking, processes
from .forking import NotForked
from .runtime import Runtime, RuntimeFault
from .spec import Spec

# Says whose a process is, when the shim that was its parent is gone.
MARK = "PHALANX_CONTAINER"
_RAISED = (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)


class ProcessRuntime(Runtime):
    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.group = 0

    def prepare(self) -> None:
        """Nothing: the agent has laid out the folder."""

    def start(self, stdout: int, stderr: int) -> int:
        spec = self.spec
        if spec.zygote:
            try:
                return self._fork(stdout, stderr)
            except NotForked as why:
                print(f"not forked from the zygote, but started as a process: {why}", file=sys.stderr, flush=True)
        try:
            process = subprocess.Popen(
                spec.command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=spec.working_folder,
                env=spec.environment | {MARK: spec.cgroup}, start_new_session=True, preexec_fn=_raise_limits)
        except OSError as error:
            raise RuntimeFault(f"{spec.command[0]} can't be started: {error.strerror}") from error
        process.returncode = 0        # the shim waits for it; Popen must not
        self.group = process.pid
        return process.pid

    def _fork(self, stdout: int, stderr: int) -> int:
        spec = self.spec
        hard = [(kind, resource.getrlimit(kind)[1]) for kind in _RAISED]
        request = {
            "argv": spec.command, "env": list((spec.environment | {MARK: spec.cgroup}).items()), "cwd": spec.working_folder,
            "rlimits": [(kind, limit, limit) for kind, limit in hard], "capabilities": None}
        self.forked = forking.fork(spec.zygote, request, stdout, stderr)
        self.group = self.forked.pid
        return self.group

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def lingering(self) -> bool:
        return any(group == self.group and state != "Z" for _, _, group, state in processes.table())

    def kill(self) -> bool:
        """Again and again until none is left: a process may fork while we look."""
        deadline = time.monotonic() + self.patience_s
        while pids := self.members():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def release(self) -> str:
        return "" if self.kill() else f"processes {sorted(self.members())} that SIGKILL does not end"

    def members(self) -> set[int]:
        """Descendants of the shim and of a forked process's waiter; where one of them is gone, what carries the container's mark."""
        if self.group and not (self.forked and self.forked.lost):
            return self.family()
        return processes.with_environment(f"{MARK}={self.spec.cgroup}")


def _raise_limits() -> None:
    """As far as this user may: the soft limits up to the hard ones."""
    for kind in _RAISED:
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (hard, hard))
