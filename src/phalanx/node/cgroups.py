"""The cgroups of one container: who is in them, what they counted, and their removal. v1, hybrid and v2. stdlib only.

The runtime makes them, with one name directly below the root of every hierarchy, so that nothing of ours stays when they are gone.
"""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import time
from dataclasses import dataclass

ROOT = "/sys/fs/cgroup"


@dataclass(frozen=True)
class MemoryUse:
    oom_kills: int = 0
    peak_bytes: int = 0
    limit_bytes: int = 0


def layout() -> str:
    """v2, hybrid (v1 with a v2 tree beside it), v1, or none."""
    if os.path.exists(f"{ROOT}/cgroup.controllers"):
        return "v2"
    if os.path.exists(f"{ROOT}/unified/cgroup.procs"):
        return "hybrid"
    return "v1" if os.path.isdir(f"{ROOT}/memory") else "none"


def folders(name: str) -> list[str]:
    """Every folder of that container, in whichever hierarchy; deepest last."""
    found = [path for path in (f"{ROOT}/{name}", *glob.glob(f"{ROOT}/*/{glob.escape(name)}")) if os.path.isdir(path)]
    # Not below the tmpfs that hides a hybrid machine's v2 tree from crun: crun writes plain files there.
    found = [path for path in found if os.path.exists(f"{os.path.dirname(path)}/cgroup.procs")]
    unique: dict[tuple[int, int], str] = {}
    for path in found:              # cpu and cpu,cpuacct are often two names for one folder
        status = os.stat(path)
        unique.setdefault((status.st_dev, status.st_ino), path)
    return list(unique.values())


def processes(name: str) -> set[int]:
    """Pids of everything in the container's cgroups, subfolders too."""
    pids: set[int] = set()
    for folder in folders(name):
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError), open(f"{path}/cgroup.procs") as file:
                pids.update(int(line) for line in file if int(line) > 0)
    return pids


def kill(name: str, seconds: float) -> bool:
    """SIGKILL everything in the container's cgroups until it is gone; False when something can't be killed in time."""
    deadline = time.monotonic() + seconds
    while pids := processes(name):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def memory_use(name: str) -> MemoryUse:
    """The kernel's own counters. Must be read before the folder is removed."""
    for folder in folders(name):
        if os.path.exists(f"{folder}/memory.oom_control"):
            return MemoryUse(
                _keyed(f"{folder}/memory.oom_control", "oom_kill"),
                _number(f"{folder}/memory.max_usage_in_bytes"),
                _number(f"{folder}/memory.limit_in_bytes"),
            )
        if os.path.exists(f"{folder}/memory.events"):
            return MemoryUse(
                _keyed(f"{folder}/memory.events", "oom_kill"),
                _number(f"{folder}/memory.peak"),
                _number(f"{folder}/memory.max"),
            )
    return MemoryUse()


def remove(name: str) -> str:
    """Remove the folders, which must hold no process any more. Answers what remains, or nothing."""
    for folder in folders(name):
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(path)
    left = folders(name)
    return f"cgroup {left[0]}" if left else ""


def _keyed(path: str, key: str) -> int:
    with contextlib.suppress(OSError), open(path) as file:
        for line in file:
            word, _, value = line.partition(" ")
            if word == key:
                return int(value)
    return 0


def _number(path: str) -> int:
    """0 for 'max', for v1's huge number that means no limit, and where the file is missing."""
    try:
        with open(path) as file:
            value = int(file.read())
    except (OSError, ValueError):
        return 0
    return value if value < 1 << 60 else 0
