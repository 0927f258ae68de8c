"""The agent's end of the launcher: start it, find it again, ask it for shims."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import phalanx

from .image import base_python

# A launcher of another version has other code loaded: it is replaced, its shims live on.
VERSION = "1"
_SOURCE = str(Path(phalanx.__file__).parent.parent)


class LaunchFailed(Exception):
    """The launcher could not do it; the text says why."""


@dataclass(frozen=True)
class Launcher:
    """`prefix` is put before the command line: for a launcher in a user namespace of its own."""

    socket: Path
    log: Path
    prefix: tuple[str, ...] = ()

    async def ready(self) -> None:
        """Find the running launcher, or start one."""
        with contextlib.suppress(LaunchFailed):
            if (await self.ask(task="hello")).get("version") == self._version:
                return
            await self.ask(task="quit")
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        code = (f"import sys; sys.path.insert(0, {_SOURCE!r}); from phalanx.node.launcher import main; "
                f"main({str(self.socket)!r}, {self._version!r})")
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self.prefix, base_python(), "-ISE", "-c", code, cwd="/",
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        waited = asyncio.create_task(process.wait())
        while not self.socket.exists():
            if waited.done():
                raise LaunchFailed(f"the launcher ended at once with code {process.returncode}: {_tail(self.log)}")
            await asyncio.sleep(0.005)
        _keep.add(waited)

    async def gone(self) -> None:
        """Return when the launcher that answers now has ended, whoever started it. LaunchFailed when none does."""
        pid = (await self.ask(task="hello"))["pid"]
        ended = asyncio.Event()
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        asyncio.get_running_loop().add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    async def leave(self) -> None:
        """End it; its shims live on. Quiet when it is gone already."""
        with contextlib.suppress(LaunchFailed):
            await self.ask(task="quit")

    async def ask(self, **request: Any) -> dict[str, Any]:
        """One request, one answer. LaunchFailed when nobody is there, or it failed."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.socket), limit=1 << 20)
        except OSError as error:
            raise LaunchFailed(f"no launcher at {self.socket}: {error.strerror}") from error
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            line = await reader.readline()
        except OSError as error:
            raise LaunchFailed(f"the launcher broke off: {error.strerror}") from error
        finally:
            writer.close()
        if not line:
            raise LaunchFailed("the launcher broke off")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise LaunchFailed(answer["failed"])
        return answer

    @property
    def _version(self) -> str:
        """Its place counts too: a launcher in a user namespace serves no fleet outside of it."""
        return " ".join([VERSION, _code_stamp(), *self.prefix])


def _code_stamp() -> str:
    """Newest change of the code that shims run: after an upgrade a new launcher is started."""
    folder = Path(__file__).parent
    return str(max(path.stat().st_mtime_ns for path in folder.glob("*.py")))


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError):
        lines = path.read_text(errors="replace").strip().splitlines()
        if lines:
            return lines[-1]
    return f"python {sys.version.split()[0]}, {os.fspath(path)} is empty"


_keep: set[asyncio.Task[int]] = set()
