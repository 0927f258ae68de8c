"""What every runtime does for a shim. One object per container, used inside the shim only. stdlib only.

prepare → start → (signal) → kill → release. `prepare` does all slow work; `start` begins the user's process in it, by exec or forked from
a zygote.
"""

from __future__ import annotations

import os

from . import processes
from .cgroups import MemoryUse
from .forking import Forked
from .spec import Spec

PATIENCE_SECONDS = 10.0     # for what SIGKILL was sent to: a process that writes its memory to a disk, or gives it back, needs a while
LAST_PATIENCE_SECONDS = 0.2      # for what has had that while already


class RuntimeFault(Exception):
    """The container can't be made or started here; the text is for the user."""


class Runtime:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.watched_peak = 0
        self.watched_kill = False
        self.patience_s = PATIENCE_SECONDS      # of `kill`
        self.forked: Forked | None = None       # by a zygote: not our child, its status comes over a socket

    @property
    def enforces_memory(self) -> bool:
        """Does the kernel hold the memory limit? Else the shim calls `watch_memory` now and then."""
        return False

    def prepare(self) -> None:
        """Make everything but the user's process. Raises RuntimeFault, and leaves nothing then."""
        raise NotImplementedError

    def start(self, stdout: int, stderr: int) -> int:
        """Start the user's process with these descriptors; answers the pid that the shim waits for. Raises RuntimeFault."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """To the user's main process and its process group: `sh -c "python t.py"` must not keep it to itself."""
        raise NotImplementedError

    def lingering(self) -> bool:
        """Is somebody of the main process's group still alive, after it ended itself?"""
        raise NotImplementedError

    def kill(self) -> bool:
        """SIGKILL all that remains, wait until it is gone. False when something has not ended `patience_s` later."""
        raise NotImplementedError

    def members(self) -> set[int]:
        """Pids of everything that runs in it."""
        raise NotImplementedError

    def memory_use(self) -> MemoryUse:
        """Counters after `kill` and before `release`."""
        return MemoryUse(int(self.watched_kill), self.watched_peak, self.spec.limits.memory_bytes)

    def watch_memory(self) -> None:
        """Sum what its processes hold, each page once; above the limit SIGKILL for all, as the kernel would."""
        used = sum(processes.proportional_bytes(pid) for pid in self.members())
        self.watched_peak = max(self.watched_peak, used)
        limit = self.spec.limits.memory_bytes
        if limit and used > limit and not self.watched_kill:
            self.watched_kill = True
            self.kill()

    def network(self) -> int | None:
        """Descriptor of the container's network namespace; None where it has the machine's."""
        return None

    def release(self) -> str:
        """Remove what prepare made, whatever state it is in; also after the shim that made it is gone. Answers what remains, or nothing."""
        raise NotImplementedError


    def family(self) -> set[int]:
        """Descendants of this shim, and of the waiter of a forked process."""
        found = processes.descendants(os.getpid())
        if self.forked and not self.forked.lost:
            found |= processes.descendants(self.forked.waiter)
        return found


def make(spec: Spec) -> Runtime:
    """The runtime that the spec names."""
    if spec.serves:
        from .zygote import OciZygote, ProcessZygote

        return ProcessZygote(spec) if spec.runtime == "process" else OciZygote(spec)
    if spec.runtime == "process":
        from .process import ProcessRuntime

        return ProcessRuntime(spec)
    from .oci import OciRuntime

    return OciRuntime(spec)
