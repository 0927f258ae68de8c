"""What a container could leave on the machine: looked at before and after, compared."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Traces:
    """Everything that belongs to one agent: its processes, links, mounts, cgroups, namespaces, files."""

    processes: frozenset[str]
    links: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    folders: frozenset[str]

    def __sub__(self, other: Traces) -> dict[str, list[str]]:
        names = ("processes", "links", "mounts", "cgroups", "folders")
        return {name: extra for name in names if (extra := sorted(getattr(self, name) - getattr(other, name)))}


def traces(state: Path, run: Path) -> Traces:
    """Of the agent of that state folder; other agents of the machine may come and go meanwhile."""
    bridge = _bridge(state)
    return Traces(
        frozenset(_processes(str(state), str(run))),
        frozenset(_links(bridge)),
        frozenset(_mounts(str(state), str(run))),
        frozenset(path for path in glob.glob("/sys/fs/cgroup/**/phalanx-*", recursive=True) if _short(state) in path),
        frozenset(str(path) for place in (state / "node/containers", run / "node") if place.exists() for path in place.iterdir()),
    )


def _processes(state: str, run: str) -> list[str]:
    """By command line, environment or open files: whatever mentions this state folder."""
    found = []
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            words = Path(folder, "cmdline").read_bytes() + Path(folder, "environ").read_bytes()
        except OSError:
            continue
        if (state.encode() in words or run.encode() in words) and int(os.path.basename(folder)) != os.getpid():
            found.append(words.split(b"\0\0")[0][:300].replace(b"\0", b" ").decode(errors="replace"))
    return found


def _mounts(state: str, run: str) -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if state in line or run in line]


def _links(bridge: str) -> list[str]:
    found = []
    for path in glob.glob("/sys/class/net/*"):
        if os.path.basename(path) == bridge or os.path.basename(os.path.realpath(f"{path}/master")) == bridge:
            found.append(os.path.basename(path))
    return found


def _bridge(state: Path) -> str:
    from phalanx.node.bridge import bridge_name

    path = state / "node/agent-id"
    return bridge_name(path.read_text().strip()) if path.exists() else ""


def _short(state: Path) -> str:
    import hashlib

    path = state / "node/agent-id"
    return hashlib.sha256(path.read_text().strip().encode()).hexdigest()[:8] if path.exists() else "no agent yet"
