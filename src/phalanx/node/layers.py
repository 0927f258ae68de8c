"""Content-addressed layers: fetched from the server once, compiled, kept below the node's folder for every later container."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from phalanx.protocol import agent_pb2

from .image import base_python
from .session import ServerAway

_RETRY_SECONDS = 0.1

Fetch = Callable[[str], AsyncIterator[agent_pb2.LayerFile]]


class BadLayer(Exception):
    """The layer can't be laid out; the text says which file is the trouble."""


class Layers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, asyncio.Task[Path]] = {}

    async def folder_of(self, layer_id: str, fetch: Fetch) -> Path:
        """The layer's folder, fetched if it is not here; many containers that ask at once share one fetch."""
        target = self.folder / _file_name(layer_id)
        if target.exists():
            return target
        task = self._running.get(layer_id)
        if task is None:
            task = asyncio.create_task(self._make(layer_id, target, fetch))
            self._running[layer_id] = task
            task.add_done_callback(lambda _: self._running.pop(layer_id, None))
        return await asyncio.shield(task)

    async def _make(self, layer_id: str, target: Path, fetch: Fetch) -> Path:
        draft = self.folder / f"{target.name}.{os.getpid()}.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o755)
        try:
            await self._fetch(draft, layer_id, fetch)
            await _compile(draft)
            os.rename(draft, target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return target

    async def _fetch(self, draft: Path, layer_id: str, fetch: Fetch) -> None:
        """From the beginning again when the server goes away meanwhile: a restart of it is nothing."""
        while True:
            try:
                await self._write_files(draft, layer_id, fetch)
                return
            except ServerAway:
                await asyncio.sleep(_RETRY_SECONDS)

    async def _write_files(self, root: Path, layer_id: str, fetch: Fetch) -> None:
        """`more` says that the next message goes on with the same file."""
        open_file = None
        try:
            async for part in fetch(layer_id):
                if open_file is None:
                    path = _inside(root, part.path)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    open_file = path.open("wb")
                    os.fchmod(open_file.fileno(), (part.mode & 0o777) or 0o644)
                open_file.write(part.data)
                if not part.more:
                    open_file.close()
                    open_file = None
        finally:
            if open_file is not None:
                open_file.close()


async def _compile(root: Path) -> None:
    """By the interpreter that containers get; a failure costs speed only."""
    script = Path(__file__).with_name("bytecode.py")
    process = await asyncio.create_subprocess_exec(
        base_python(), "-ISE", str(script), str(root), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
    try:
        await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise


def _inside(root: Path, path: str) -> Path:
    """The place of an absolute path of the container below `root`; nothing may lead out of it."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or not path.startswith("/"):
        raise BadLayer(f"a layer holds a file at {path!r}: an absolute path without '..' is needed")
    return root.joinpath(*parts)


def _file_name(layer_id: str) -> str:
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in layer_id)
    if not safe or safe.startswith("."):
        raise BadLayer(f"{layer_id!r} is no layer id")
    return safe
