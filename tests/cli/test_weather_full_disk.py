"""The state folder's disk is full for a while: what runs goes on, and who ended meanwhile is started again when there is room."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli import supervisor
from phalanx.cli.supervisor import Supervisor
from phalanx.paths import Paths


def test_the_supervisor_outlives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own log and the new process's can't be written while the disk is full (logs in a folder that is not there fail alike)."""
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.01,) * 7)
    paths = Paths(tmp_path)
    paths.run.mkdir(mode=0o700)
    try:
        asyncio.run(_story(paths, monkeypatch))
    finally:
        os.rmdir(paths.run) if paths.run.exists() else None


async def _story(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
    keeper = Supervisor(paths, {"agent": sleeper}, "127.0.0.1:0", grace_s=0)
    await keeper._start("agent")
    first = keeper._children["agent"].process
    watch = asyncio.create_task(keeper._keep("agent"))
    monkeypatch.setattr(supervisor, "log_path", lambda paths, name: paths.state / "full" / f"{name}.log")
    failed = _counted(keeper, monkeypatch)
    first.kill()
    await _until(lambda: failed["starts"] >= 3)
    assert not watch.done()
    (paths.state / "full").mkdir()      # room again
    await _until(lambda: keeper._children["agent"].process is not first)
    watch.cancel()
    await keeper._stop_all()


def _counted(keeper: Supervisor, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    counts = {"starts": 0}
    start: Callable[[str], Awaitable[Any]] = keeper._start

    async def counting(name: str) -> None:
        counts["starts"] += 1
        await start(name)

    monkeypatch.setattr(keeper, "_start", counting)
    return counts


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
