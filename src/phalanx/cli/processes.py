"""Which processes are ours: pids with their start times, in a file, so that no signal ever reaches a stranger."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    pid: int
    start: str      # "boot id/clock ticks since boot": with the pid it names one process for ever

    def is_alive(self) -> bool:
        return start_of(self.pid) == self.start

    def signal(self, signum: signal.Signals) -> bool:
        """False if it is gone. The pidfd makes sure that what was checked is what gets the signal."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except (ProcessLookupError, PermissionError):
            return False
        try:
            if not self.is_alive():
                return False
            signal.pidfd_send_signal(pidfd, signum)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)

    def wait(self, seconds: float) -> bool:
        """True once it is gone."""
        deadline = time.monotonic() + seconds
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def process_of(pid: int) -> Process | None:
    start = start_of(pid)
    return Process(pid, start) if start else None


def start_of(pid: int) -> str | None:
    """None if there is no such process, or it has ended and only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = stat.rpartition(")")[2].split()       # the command's name before it may hold anything
    state, ticks = fields[0], fields[19]
    if state in "ZX":
        return None
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{ticks}"


def read_record(path: Path) -> dict[str, Process]:
    """Name to process. Empty when there is no file."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {name: Process(**process) for name, process in record.items()}


def write_record(path: Path, record: dict[str, Process]) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({name: {"pid": p.pid, "start": p.start} for name, p in record.items()}))
    os.replace(draft, path)
