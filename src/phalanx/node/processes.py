"""The machine's process table, as far as we may see it. stdlib only."""

from __future__ import annotations

import contextlib
import os


def table() -> list[tuple[int, int, int, str]]:
    """(pid, parent, process group, state) of every process."""
    rows = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            rows.append((int(name), int(fields[1]), int(fields[2]), fields[0]))
    return rows


def has_ended(pid: int) -> bool:
    """Gone, or a zombie that its parent has not fetched yet."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "ZX"
    return True


def descendants(ancestor: int) -> set[int]:
    """Living ones, however deep; zombies left out."""
    children: dict[int, list[int]] = {}
    for pid, parent, _, state in table():
        if state != "Z":
            children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = list(children.get(ancestor, ()))
    while queue:
        pid = queue.pop()
        found.add(pid)
        queue += children.get(pid, ())
    return found


def with_environment(entry: str) -> set[int]:
    """Living processes whose environment began with that NAME=value in it."""
    mark = entry.encode()
    return {pid for pid, _, _, state in table() if state != "Z" and pid != os.getpid() and mark in _environment(pid)}


def proportional_bytes(pid: int) -> int:
    """The memory it holds, each shared page counted in parts; 0 when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _environment(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().split(b"\0")
    return []
