"""Reading logs: lines of an app from a number on, in the order they came, or those of a span of time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

from phalanx.model.app import App
from phalanx.model.cluster import Member, MemberState
from phalanx.model.logs import STDERR, STDOUT, SYSTEM, LogFilter, LogLine, LogPiece
from phalanx.model.work import Function
from phalanx.server.log_index import Source
from phalanx.server.log_retention import lost_sentence
from phalanx.store.segments import LINE, Frame, Segments, frames_with_ends

if TYPE_CHECKING:
    from phalanx.server.logs import Logs
    from phalanx.server.server import Server

LINE_SHOWN = 400           # characters of a line that an error repeats
WINDOW_BYTES = 64 << 10    # of lines at a time: what the event loop reads in one go


class LogReading:
    """Readers see lines up to `logs.shown`, whose numbers are safe."""

    def __init__(self, server: Server, logs: Logs, segments: Segments) -> None:
        self._server = server
        self._logs = logs
        self._segments = segments

    def cursor(self, app_id: str, after: int, wanted: LogFilter) -> LogCursor:
        return LogCursor(self, app_id, after, wanted)

    async def start_of_tail(self, app_id: str, count: int, wanted: LogFilter) -> int:
        """The number behind which the last `count` lines stand."""
        lines = await self.fetch(app_id, 0, 1 << 63, count, wanted)
        return min((line.seq for line in lines), default=self._logs.shown + 1) - 1

    async def fetch(self, app_id: str, since_ns: int, until_ns: int, limit: int, wanted: LogFilter) -> list[LogLine]:
        """The last `limit` lines of a span of time (until is outside), in order of time; a rank's own order is never changed."""
        kept: list[LogLine] = []
        by_last = sorted(self._pieces(app_id, since_ns, until_ns, wanted), key=lambda piece: piece.last_ns, reverse=True)
        for piece in by_last:
            if len(kept) >= limit and piece.last_ns < kept[0].time_ns:
                break
            kept.extend(line for line in self._of_piece(piece) if since_ns <= line.time_ns < until_ns and wanted.takes(line))
            kept.sort(key=lambda line: (line.time_ns, line.seq))
            del kept[: max(len(kept) - limit, 0)]
            await asyncio.sleep(0)
        return _in_order_of_time(kept)

    def last_of(self, source: Source, count: int) -> list[str]:
        """The last lines of one rank, for an error's text: without ends and without blank ones."""
        lines: list[str] = []
        for piece in reversed(list(self._logs.index.pieces(source))):
            said = [frame.data.decode(errors="replace").rstrip()[:LINE_SHOWN] for frame, _ in self._frames(piece, piece.start)]
            lines = [line for line in said if line] + lines
            if len(lines) >= count:
                break
        return lines[-count:]

    async def count(self, app_id: str, since_ns: int, until_ns: int, bucket_s: int, wanted: LogFilter) -> dict[int, dict[int, int]]:
        """Lines by bucket and stream: bucket's first second -> {stream: lines}. Buckets begin at multiples of their length."""
        counts: dict[int, dict[int, int]] = {}
        bucket_ns = max(bucket_s, 1) * 1_000_000_000
        for piece in self._pieces(app_id, since_ns, until_ns, wanted):
            for line in self._of_piece(piece):
                if since_ns <= line.time_ns < until_ns and wanted.takes(line):
                    bucket = counts.setdefault(line.time_ns // bucket_ns * max(bucket_s, 1), {STDOUT: 0, STDERR: 0, SYSTEM: 0})
                    bucket[line.stream] = bucket.get(line.stream, 0) + 1
            await asyncio.sleep(0)
        return counts

    def function_ids(self, function_id: str) -> frozenset[str]:
        """A function and all parameter sets of it."""
        bound = (f.function_id for f in self._server.world[Function].values() if f.bound_to == function_id)
        return frozenset((function_id, *bound))

    def is_over(self, app_id: str, member: Member | None = None) -> bool:
        """Nothing more will be written: the app is stopped and drained, or the one rank asked for is gone and its log is in."""
        if member is not None:
            rank = (member.assignment, member.rank, app_id)
            gone = member.state in (MemberState.EXITED, MemberState.RELEASED)
            return self._logs.has_ended(*rank) or (gone and not self._logs.is_written(*rank))
        app = self._server.world[App].get(app_id)
        return app is None or (app.drained and self._logs.is_drained(app_id))

    # ------------------------------------------------------------ pieces and lines

    def _pieces(self, app_id: str, since_ns: int, until_ns: int, wanted: LogFilter) -> list[LogPiece]:
        return [
            piece
            for source in self._logs.index.sources(app_id)
            for piece in self._logs.index.pieces(source)
            if piece.last_ns >= since_ns and piece.first_ns < until_ns and _may_hold(piece, wanted)
        ]

    def _of_piece(self, piece: LogPiece) -> Iterator[LogLine]:
        if piece.lost_before:
            yield _lost(piece)
        for frame in self._frames(piece, piece.start):
            if frame[0].seq > self._logs.shown:
                return
            yield _line(piece, frame[0])

    def _frames(self, piece: LogPiece, start: int) -> Iterator[tuple[Frame, int]]:
        """Lines of a piece from a place in its segment on, each with the place behind it."""
        for frame, end in frames_with_ends(self._segments.read(piece.segment, start, piece.end)):
            if frame.kind == LINE:
                yield frame, start + end


class LogCursor:
    """A place in an app's log. `seq`: all lines up to it were given out."""

    def __init__(self, reading: LogReading, app_id: str, after: int, wanted: LogFilter) -> None:
        self._reading = reading
        self._app_id = app_id
        self._wanted = wanted
        self._places: dict[Source, tuple[int, int]] = {}    # (piece, place in its segment) where the next line stands
        self._merged: Iterator[LogLine] | None = None
        self._upto = 0
        self.seq = after

    def next(self) -> tuple[list[LogLine], bool]:
        """The next lines, about WINDOW_BYTES of them at most, and whether those were all there are now."""
        logs = self._reading._logs
        if self._merged is None:
            self._upto = logs.shown
            sources = logs.index.sources_after(self._app_id, self.seq)
            self._merged = heapq.merge(*(self._source(source) for source in sources), key=lambda line: line.seq)
        lines: list[LogLine] = []
        size = 0
        for line in self._merged:
            self.seq = max(self.seq, line.seq)
            size += len(line.data)
            if self._wanted.takes(line):
                lines.append(line)
            if size >= WINDOW_BYTES:
                return lines, False
        self._merged = None
        self.seq = max(self.seq, self._upto)
        return lines, logs.shown <= self._upto

    def _source(self, source: Source) -> Iterator[LogLine]:
        after = self.seq
        place = self._places.get(source)
        for piece in list(self._reading._logs.index.pieces(source)):
            if max(piece.last_seq, piece.seq) <= after or not _may_hold(piece, self._wanted):
                continue
            if piece.lost_before and after < piece.seq <= self._upto:
                yield _lost(piece)
            start = place[1] if place is not None and place[0] == piece.seq else piece.start
            for frame, end in self._reading._frames(piece, start):
                if frame.seq > self._upto:
                    return
                self._places[source] = (piece.seq, end)
                if frame.seq > after:
                    yield _line(piece, frame)


def _line(piece: LogPiece, frame: Frame) -> LogLine:
    call_id, input_id, function_id, task_id, cluster_id = (*frame.ids, "", "", "", "", "")[:5]
    return LogLine(
        frame.seq, frame.time_ns, frame.stream, frame.data, piece.app_id, function_id or piece.function_id, cluster_id or piece.cluster_id,
        task_id or piece.task_id, piece.assignment, piece.rank, call_id, input_id,
    )  # fmt: skip


def _lost(piece: LogPiece) -> LogLine:
    return LogLine(
        piece.seq, piece.first_ns, SYSTEM, lost_sentence(piece).encode(), piece.app_id, piece.function_id, piece.cluster_id,
        piece.task_id, piece.assignment, piece.rank,
    )  # fmt: skip


def _may_hold(piece: LogPiece, wanted: LogFilter) -> bool:
    """Whether lines of this piece can pass; the server's own lines say themselves whom they are about."""
    if not piece.assignment:
        return wanted.rank is None
    return (
        (not wanted.task_id or piece.task_id == wanted.task_id)
        and (not wanted.cluster_id or piece.cluster_id == wanted.cluster_id)
        and (wanted.rank is None or piece.rank == wanted.rank)
        and (not wanted.function_ids or piece.function_id in wanted.function_ids)
    )


def _in_order_of_time(lines: list[LogLine]) -> list[LogLine]:
    """By time, where a rank's line counts as no earlier than the one before it: clocks step, order within a rank stays."""
    latest: dict[tuple[int, int], int] = {}
    keyed = []
    for line in sorted(lines, key=lambda line: line.seq):
        source = (line.assignment, line.rank)
        latest[source] = max(latest.get(source, 0), line.time_ns)
        keyed.append((latest[source], line.seq, line))
    keyed.sort(key=lambda entry: entry[:2])
    return [line for _, _, line in keyed]
