"""An agent meets a shim that another phalanx started."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.node.container import Container
from phalanx.node.control import VERSION


class Launcher:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(self, task: str, **about: Any) -> dict[str, str]:
        self.asked.append(task)
        return {"remains": ""}


def test_a_shim_of_another_version_is_stopped_with_the_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    socket, launcher = tmp_path / "shim.sock", Launcher()
    spec: Any = SimpleNamespace(
        control_socket=str(socket), folder=str(tmp_path), spool=str(tmp_path / "spool"), task_id="ta-1", assignment=1, rank=0)

    async def adopt() -> Container:
        async def shim(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hello = {"say": "hello", "version": VERSION + 1, "phase": "running", "boottime_ms": 0, "exit": None}
            writer.write(json.dumps(hello).encode() + b"\n")

        async with await asyncio.start_unix_server(shim, str(socket)):
            container = Container(spec, launcher, lambda message: None)  # type: ignore[arg-type]
            await container.adopt()
            return container

    container = asyncio.run(adopt())
    assert launcher.asked == ["sweep"] and container.ended is not None
    assert f"its shim speaks version {VERSION + 1} of the control protocol and the agent version {VERSION}" in container.ended.sentence
    assert "ta-1 is stopped: its shim speaks version" in "".join(capfd.readouterr())
