"""Log space: past a limit, or on a full disk, the oldest segments go, and "N lines lost" stands where they were."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from phalanx.model.logs import LogPiece
from phalanx.server.log_index import LogIndex
from phalanx.server.unit import Unit
from phalanx.store.segments import Segments

if TYPE_CHECKING:
    from phalanx.server.server import Server

DEFAULT_LIMIT_MIB = 10 * 1024


class LogRetention:
    """The limit is `logs_limit_mib` of the configuration's `extra`, for the logs of all apps together."""

    def __init__(self, server: Server, index: LogIndex, segments: Segments) -> None:
        self._server = server
        self._index = index
        self._segments = segments
        self.limit_bytes = int(float(server.config.extra.get("logs_limit_mib", DEFAULT_LIMIT_MIB)) * (1 << 20))

    async def keep_limit(self, written_now: set[str]) -> None:
        """Drop until the logs fit. Segments that are written to stay."""
        while self._index.bytes > self.limit_bytes and await self.drop_for_room(written_now):
            pass

    async def drop_for_room(self, written_now: set[str]) -> bool:
        """Drop the oldest segment; False when none may go."""
        found = self._index.oldest_segment(written_now)
        if found is None:
            return False
        source, pieces = found
        unit = self._server.unit()
        lost = sum(piece.lines + piece.lost_before for piece in pieces)
        following = next((piece for piece in self._index.pieces(source) if piece.seq > pieces[-1].seq), None)
        for piece in pieces:
            if following is None and piece is pieces[-1]:
                break
            self._index.remove(piece)
            unit.delete(piece)
        # The mark stands on the first piece that is left; when none is, on an empty one in the last one's place.
        marked = following or dataclasses.replace(pieces[-1], start=pieces[-1].end, lines=0, lost_before=0)
        marked = dataclasses.replace(marked, lost_before=marked.lost_before + lost)
        self._index.replace(marked)
        unit.put(marked)
        await self._server.commit_soon(unit)
        await asyncio.to_thread(self._segments.drop, pieces[0].segment)
        return True

    def forget(self, unit: Unit, app_id: str) -> None:
        """Drop all of an app, without a mark."""
        names = set()
        for source in self._index.sources(app_id):
            for piece in list(self._index.pieces(source)):
                names.add(piece.segment)
                self._index.remove(piece)
                unit.delete(piece)
        unit.after(lambda: [self._segments.drop(name) for name in names] and None)


def lost_sentence(piece: LogPiece) -> str:
    return f"[phalanx] {piece.lost_before} lines lost: the log space was full, and the oldest went first\n"
