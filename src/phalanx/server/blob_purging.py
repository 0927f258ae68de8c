"""Blobs that no row names any more, and have not been asked for in the retention time, are removed; so are old mounts,
and parts of uploads that were never completed."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from phalanx.model.app import AppVersion, Mount
from phalanx.model.cluster import Assignment, Attempt
from phalanx.model.work import Chunk, Function, Input, Output
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

SLICE = 2_000       # rows looked through in one turn of the event loop: some milliseconds
_NAMED = re.compile(rb"bl-([0-9a-f]{64})")


class BlobPurging:
    """Mark and sweep. A blob's file carries the time at which it was last written or asked about by its hash: a client that is told
    "it is here already" may name it a moment later. Time to look is taken only when some file is old enough to go."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def sweep(self, keep_ms: int) -> int:
        """Returns how many were removed."""
        before_s = (self._server.now_ms() - keep_ms) / 1000
        await self._server.act(lambda unit: self._old_mounts(unit, int(before_s * 1000)))
        await asyncio.to_thread(self._server.blobs.drop_parts, self._server.now_ms() / 1000)
        candidates = await asyncio.to_thread(self._server.blobs.older_than, before_s)
        if not candidates:
            return 0
        candidates -= {str(sha256) for mount in self._server.world[Mount].values() for sha256, _ in mount.files.values()}
        for count, text in enumerate(self._texts()):
            candidates.difference_update(found.decode() for found in _NAMED.findall(text))
            if count % SLICE == SLICE - 1:
                await asyncio.sleep(0)      # a row that comes meanwhile names a blob whose file is young
        return sum(self._server.blobs.remove(sha256, before_s) for sha256 in candidates)

    def _texts(self) -> Iterator[bytes]:
        """Every serialized message of every row that may name a blob."""
        for kind in (Function, AppVersion, Input, Output, Chunk, Attempt, Assignment):
            for record in list(self._server.world[kind].values()):
                yield from _bytes_in(record)

    def _old_mounts(self, unit: Unit, before_ms: int) -> None:
        """Sets of files that no function has. Those with a folder are the client's own, and few."""
        world = self._server.world
        old = [mount for mount in world[Mount].values() if not mount.folder and mount.created_ms < before_ms]
        if not old:
            return
        named = {mount_id for function in world.functions_of_all_versions() for mount_id in function.mount_ids}
        for mount in old:
            if mount.mount_id not in named:
                unit.delete(mount)


def _bytes_in(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _bytes_in(getattr(value, field.name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _bytes_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _bytes_in(part)
