"""What log pieces there are, by app and by rank, as far as they are committed. Readers and retention go through it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from phalanx.model.logs import LogPiece

Source = tuple[int, int, str]
"""Who wrote: (assignment, rank, app). Assignment 0 is the server itself."""


class LogIndex:
    """Pieces of a source in the order they were written. A source that wrote last comes last among its app's."""

    def __init__(self, pieces: Iterable[LogPiece]) -> None:
        self._pieces: dict[Source, list[LogPiece]] = {}
        self._sources: dict[str, dict[Source, None]] = defaultdict(dict)    # an ordered set
        self.bytes = 0
        self.last_seq = 0
        for piece in sorted(pieces, key=lambda piece: piece.seq):
            self.put(piece)
        for sources in self._sources.values():
            by_last = sorted(sources, key=self.last_seq_of)
            sources.clear()
            sources.update(dict.fromkeys(by_last))

    def put(self, piece: LogPiece) -> None:
        """A piece is new, or has grown."""
        source = source_of(piece)
        pieces = self._pieces.setdefault(source, [])
        before = self.last_seq_of(source) if pieces else -1
        if pieces and pieces[-1].seq == piece.seq:
            self.bytes -= pieces[-1].end - pieces[-1].start
            piece.lost_before = max(piece.lost_before, pieces[-1].lost_before)    # retention may have marked it since it was queued
            pieces[-1] = piece
        else:
            pieces.append(piece)
        self.bytes += piece.end - piece.start
        self.last_seq = max(self.last_seq, piece.seq, piece.last_seq)
        # In the order of their last lines, which `sources_after` counts on. A rank that only ended has no new one: moved, it would hide
        # from readers what others wrote last.
        if self.last_seq_of(source) > before:
            sources = self._sources[piece.app_id]
            sources.pop(source, None)
            sources[source] = None

    def pieces(self, source: Source) -> list[LogPiece]:
        return self._pieces.get(source, [])

    def last(self, source: Source) -> LogPiece | None:
        pieces = self._pieces.get(source)
        return pieces[-1] if pieces else None

    def last_seq_of(self, source: Source) -> int:
        return max(self._pieces[source][-1].last_seq, self._pieces[source][-1].seq)

    def sources(self, app_id: str) -> list[Source]:
        return list(self._sources.get(app_id, ()))

    def sources_after(self, app_id: str, seq: int) -> list[Source]:
        """Those of an app with lines behind `seq`: looks at no others, however many there were."""
        found = []
        for source in reversed(self._sources.get(app_id, {})):
            if self.last_seq_of(source) <= seq:
                break
            found.append(source)
        return found

    def oldest_segment(self, written_now: set[str]) -> tuple[Source, list[LogPiece]] | None:
        """The segment whose last line is the oldest, with its pieces; never one that is being written to."""
        best: tuple[int, Source, str] | None = None
        for source, pieces in self._pieces.items():
            first = next((piece for piece in pieces if piece.end > piece.start), None)
            if first is None or first.segment in written_now:
                continue
            last = max(max(piece.last_seq, piece.seq) for piece in pieces if piece.segment == first.segment)
            if best is None or last < best[0]:
                best = (last, source, first.segment)
        if best is None:
            return None
        _, source, segment = best
        return source, [piece for piece in self._pieces[source] if piece.segment == segment]

    def remove(self, piece: LogPiece) -> None:
        source = source_of(piece)
        pieces = self._pieces.get(source, [])
        at = next((at for at, other in enumerate(pieces) if other.seq == piece.seq), None)
        if at is None:
            return
        self.bytes -= pieces[at].end - pieces[at].start
        del pieces[at]
        if not pieces:
            del self._pieces[source]
            sources = self._sources.get(piece.app_id, {})
            sources.pop(source, None)
            if not sources:
                self._sources.pop(piece.app_id, None)

    def replace(self, piece: LogPiece) -> None:
        """A piece that is not the last one changed; its place stays."""
        pieces = self._pieces.get(source_of(piece), [])
        for at, other in enumerate(pieces):
            if other.seq == piece.seq:
                self.bytes += (piece.end - piece.start) - (other.end - other.start)
                pieces[at] = piece


def source_of(piece: LogPiece) -> Source:
    return (piece.assignment, piece.rank, piece.app_id)
