"""What earlier agents left on this machine and no folder tells of: processes and cgroups by the names that containers of this agent have.

For a start after a crash or a reboot (case 75): the folder of a container can be gone or unreadable while what it describes is still there.
Runs in the launcher, in the containers' own namespaces. stdlib only.
"""

from __future__ import annotations

import contextlib
import glob
import os
import signal
import time

from . import cgroups, processes
from .process import MARK

_PATIENCE_SECONDS = 10.0


def sweep(prefix: str, kept: list[str]) -> dict[str, str]:
    """Kill and remove everything named `prefix`…, except for the containers in `kept`. Answers what remains, by name."""
    names = {name for name in _cgroup_names(prefix) | set(_marked(prefix)) if name not in kept}
    remains = {}
    for name in sorted(names):
        remains[name] = remove(name)
    return remains


def remove(name: str, patience_s: float = _PATIENCE_SECONDS) -> str:
    """Kill and remove what has exactly this name. Answers what remains, or nothing."""
    left = [] if cgroups.kill(name, patience_s) else [f"processes {sorted(cgroups.processes(name))} that SIGKILL does not end"]
    if not left:
        left.append(cgroups.remove(name))
    left.append(_kill_marked(name, patience_s))
    return "; ".join(filter(None, left))


def _cgroup_names(prefix: str) -> set[str]:
    pattern = glob.escape(prefix) + "*"
    found = [*glob.glob(f"{cgroups.ROOT}/{pattern}"), *glob.glob(f"{cgroups.ROOT}/*/{pattern}")]
    return {os.path.basename(path) for path in found if cgroups.folders(os.path.basename(path))}


def _marked(prefix: str) -> dict[str, set[int]]:
    """Pids by the container that their environment began with. Whoever has a living shim above itself is its shim's business."""
    mark, found = f"{MARK}={prefix}".encode(), dict[str, set[int]]()
    parents = {pid: parent for pid, parent, _, state in processes.table() if state != "Z"}
    for entry in map(str, parents):
        if int(entry) == os.getpid() or _has_shim(int(entry), parents):
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            for value in file.read().split(b"\0"):
                if value.startswith(mark):
                    found.setdefault(value.decode(errors="replace").partition("=")[2], set()).add(int(entry))
    return found


def _has_shim(pid: int, parents: dict[int, int]) -> bool:
    """Shims are forks of the launcher, and have its command line."""
    while pid := parents.get(pid, 0):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"phalanx.node.launcher" in file.read():
                return True
    return False


def _kill_marked(name: str, patience_s: float) -> str:
    deadline = time.monotonic() + patience_s
    while pids := _marked(name).get(name, set()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return f"processes {sorted(pids)} that SIGKILL does not end"
        time.sleep(0.01)
    return ""
