"""Logs: what ranks write and what the server says becomes lines in segments, indexed, and readable once they are safe.

The way of a line: `ingest` makes lines of what an agent sent, gives each its number and its place in a segment, and queues
them; one writer at a time puts everything queued on disk, commits the index, and only then moves `shown`. So what a reader
saw has a number that never changes, and what was acknowledged survives kill -9. What was not, the shim sends again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from phalanx.core.lines import Lines
from phalanx.model.cluster import Member
from phalanx.model.logs import SYSTEM, LogPiece
from phalanx.server.log_display import LogDisplay
from phalanx.server.log_index import LogIndex, Source
from phalanx.server.log_inputs import LogInputs
from phalanx.server.log_reading import LogReading
from phalanx.server.log_retention import LogRetention
from phalanx.server.unit import Unit
from phalanx.store.segments import LINE, TAIL, Frame, Segments, decode, encode, whole

if TYPE_CHECKING:
    from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.logs")

PIECE_BYTES = 256 << 10     # a reader that looks for a place reads one piece
SEGMENT_BYTES = 8 << 20     # retention drops one segment at a time
IDLE_MS = 250               # a line that has no end yet is shown after this long without more of it
RETRY_S = 1.0               # between tries to write to a disk that has no room


@dataclasses.dataclass
class _Append:
    """What one ingest adds to one source: written, then committed with the index row as it is after it."""

    writer: _Writer
    segment: str
    offset: int
    data: bytes
    piece: LogPiece
    written: asyncio.Future[None]


class _Writer:
    """The open end of one source's log. `piece` runs ahead of the index by what is queued."""

    def __init__(self, source: Source, piece: LogPiece) -> None:
        self.source = source
        self.piece = piece
        self.streams: dict[int, Lines] = {}
        self.heard: dict[int, tuple[int, int]] = {}     # stream -> (server's ms, the rank's ns) of the latest bytes
        self.had = piece.spool_end                      # the spool is in up to here, queued or written
        self.synced = piece.spool_end                   # and acknowledged up to here
        self.queued = 0                                 # appends that are not committed yet
        self.timer_armed = False

    def rests(self) -> list[tuple[int, bytes]]:
        return [(stream, lines.rest) for stream, lines in self.streams.items() if lines.rest]


class Logs:
    """Registered as `server.logs`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._segments = Segments(server.paths.logs, sync=server.config.durability == "full")
        self._queue: list[_Append] = []
        self._writers: dict[Source, _Writer] = {}
        self._silent: set[tuple[int, int]] = set()      # ranks that ended without a byte, since this server began
        self._latest: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._recover()
        self.index = LogIndex(server.world[LogPiece].values())
        self._last_seq = self.index.last_seq
        self.shown = self.index.last_seq                # readers see lines up to this number
        self.inputs = LogInputs(server)
        self.display = LogDisplay(server)
        self.reading = LogReading(server, self, self._segments)
        self.retention = LogRetention(server, self.index, self._segments)

    def load(self) -> None:
        """Ranks that go on after a restart: a line without an end is shown in time even when the rank says no more."""
        self.display.load()
        for member in self._server.world[Member].values():
            last = self.index.last((member.assignment, member.rank, member.app_id))
            if last is not None and not last.ended:
                writer = self._writer_of(member)
                if writer.rests():
                    self._arm(writer)

    # ------------------------------------------------------------ writing

    async def ingest(self, member: Member, offset: int, records: list[tuple[int, int, bytes]], end_offset: int) -> int:
        """Take (stream, time in ns, bytes) as the shim's spool holds them from `offset`; what is here already is dropped.

        Returns the spool offset that may be acknowledged: everything before it is on disk.
        """
        writer = self._writer_of(member)
        if end_offset > writer.had:
            self._begin_piece(writer)
            frames = self._missing(writer, offset - writer.had) if offset > writer.had else []
            frames += self._feed(writer, _not_had(writer.had, offset, records, end_offset))
            if writer.piece.ended:      # its node was taken for lost, and is back
                frames += self._finish(writer)
            writer.had = end_offset
            await self._append(writer, frames)
        self._let_go(writer)
        return writer.synced

    def ended(self, assignment: int, rank: int, end_offset: int = 0) -> asyncio.Future[None]:
        """The rank is gone: what it wrote last without a newline is shown. The future is done once all of it is in (or nothing came)."""
        member = self._server.world[Member].get((assignment, rank))
        if member is None:
            return _done()
        self.display.task_state(member.app_id, member.function_id, member.task_id, "completed")
        if not self.is_written(assignment, rank, member.app_id):
            self._silent.add((assignment, rank))
            self._server.topics.wake(("logs", member.app_id))
            return _done()
        writer = self._writer_of(member)
        frames = self._missing(writer, end_offset - writer.had) if end_offset > writer.had else []
        frames += self._finish(writer)
        writer.had = max(writer.had, end_offset)
        writer.piece.ended = True
        return self._append(writer, frames)

    def has_ended(self, assignment: int, rank: int, app_id: str) -> bool:
        """`ended` was said of the rank, and everything it wrote is readable."""
        last = self.index.last((assignment, rank, app_id))
        return (assignment, rank) in self._silent or (last is not None and last.ended and not self.is_written(assignment, rank, app_id))

    def is_written(self, assignment: int, rank: int, app_id: str) -> bool:
        """Something of the rank came, and it has not ended."""
        writer = self._writers.get((assignment, rank, app_id))
        last = writer.piece if writer is not None else self.index.last((assignment, rank, app_id))
        return last is not None and (not last.ended or (writer is not None and writer.queued > 0))

    def system_line(
        self,
        unit: Unit | None,
        app_id: str,
        function_id: str,
        text: str,
        *,
        call_id: str = "",
        input_id: str = "",
        task_id: str = "",
        cluster_id: str = "",
    ) -> None:
        """Say something in the app's log (file descriptor 3), once `unit` is on disk. A newline is added where none is."""
        ids = (call_id, input_id, function_id, task_id, cluster_id)
        if unit is not None:
            unit.after(lambda: self._say(app_id, text, ids))
        else:
            self._say(app_id, text, ids)

    def _say(self, app_id: str, text: str, ids: tuple[str, ...]) -> None:
        data = (text if text.endswith("\n") else text + "\n").encode()
        writer = self._writer((0, 0, app_id), app_id, "", "", "")
        # To the nanosecond, as the ranks' lines are: a tail takes the latest by time.
        wall_ns = time.time_ns()
        time_ns = wall_ns + (self._server.now_ms() - wall_ns // 1_000_000) * 1_000_000
        self._begin_piece(writer)
        self._append(writer, [Frame(LINE, SYSTEM, self._next_seq(), time_ns, data, ids)])

    def is_drained(self, app_id: str) -> bool:
        """Every line of the app that reached the server is readable, and no rank that sent some is still to end."""
        of_app = [writer for source, writer in self._writers.items() if source[2] == app_id]
        return not any(writer.queued or (writer.source[0] and not writer.piece.ended) for writer in of_app)

    def last_ns(self, assignment: int, rank: int, app_id: str) -> int:
        """When a rank wrote its last line; 0: never."""
        return max((piece.last_ns for piece in self.index.pieces((assignment, rank, app_id))), default=0)

    async def settle(self, timeout_s: float | None = None) -> None:
        """Return once everything that came so far is readable, or the writer was stopped, or at the time-out: a disk may be full."""
        if self._latest is not None and not self._latest.done():
            await asyncio.wait({self._latest}, timeout=timeout_s)

    def forget(self, unit: Unit, app_id: str) -> None:
        """The app is purged: its log goes with it."""
        self.retention.forget(unit, app_id)
        for source in [source for source in self._writers if source[2] == app_id]:
            del self._writers[source]

    def forget_ranks(self) -> None:
        """Rows of members are gone."""
        self._silent &= self._server.world[Member].keys()

    # ------------------------------------------------------------ what a person is shown beside lines

    def progress(self, app_id: str, function_id: str, length: int, position: int, sentence: str) -> None:
        """A function waits, at `position` of `length` from 0, and for what: the queue line on a terminal, after a while an INFO line."""
        self.display.progress(app_id, function_id, length, position, sentence)

    def waits_no_more(self, function_id: str) -> None:
        """The end of `progress`, when no container began."""
        self.display.waits_no_more(function_id)

    def task_state(self, app_id: str, function_id: str, task_id: str, state: str) -> None:
        """Where a container is, for the client's status line: creating, active, idle, completed. Ends `progress`."""
        self.display.task_state(app_id, function_id, task_id, state)

    # ------------------------------------------------------------ lines and places

    def _feed(self, writer: _Writer, records: Iterable[tuple[int, int, bytes]]) -> list[Frame]:
        frames = []
        now_ms = self._server.now_ms()
        before = dict(writer.rests())
        emitted = set()
        for stream, time_ns, data in records:
            lines = writer.streams.setdefault(stream, Lines())
            for line in lines.feed(data):
                frames.append(self._line(writer, stream, time_ns, line))
                emitted.add(stream)
            writer.heard[stream] = (now_ms, time_ns)
        for stream, rest in writer.rests():
            known = len(before.get(stream, b"")) if stream not in emitted else 0
            if len(rest) > known:
                frames.append(Frame(TAIL, stream, 0, writer.heard[stream][1], rest[known:]))
        if writer.rests():
            self._arm(writer)
        return frames

    def _finish(self, writer: _Writer) -> list[Frame]:
        """What streams have begun, as it is: nothing more comes."""
        now_ns = self._server.now_ms() * 1_000_000
        rests = [(stream, lines.finish()) for stream, lines in writer.streams.items()]
        return [self._line(writer, stream, writer.heard.get(stream, (0, now_ns))[1], rest) for stream, rest in rests if rest]

    def _line(self, writer: _Writer, stream: int, time_ns: int, data: bytes) -> Frame:
        ids = self.inputs.at(writer.source[0], time_ns)
        return Frame(LINE, stream, self._next_seq(), time_ns, data, ids)

    def _missing(self, writer: _Writer, count: int) -> list[Frame]:
        """Bytes of the spool that will never come. What stood before them ends here; the next line begins behind them."""
        now_ns = self._server.now_ms() * 1_000_000
        frames = [self._line(writer, stream, now_ns, lines.finish() + b"\n") for stream, lines in writer.streams.items() if lines.rest]
        text = f"[phalanx] {count} bytes of this container's output were lost on its node\n"
        return [*frames, self._line(writer, SYSTEM, now_ns, text.encode())]

    def _arm(self, writer: _Writer) -> None:
        if not writer.timer_armed:
            writer.timer_armed = True
            self._server.clock.call_after(IDLE_MS, lambda: self._idle(writer))

    def _idle(self, writer: _Writer) -> None:
        """Show what has waited for its end long enough, and look again for the rest."""
        writer.timer_armed = False
        if writer.piece.ended:
            return
        now_ms = self._server.now_ms()
        frames: list[Frame] = []
        waits = False
        for stream, _ in writer.rests():
            heard_ms, time_ns = writer.heard.get(stream, (0, now_ms * 1_000_000))
            if now_ms - heard_ms < IDLE_MS:
                waits = True
                continue
            lines = writer.streams[stream]
            shown = lines.flush()
            if not shown:
                continue    # the beginning of one character: shown when the rest comes, or at the end
            frames.append(self._line(writer, stream, time_ns, shown))
            if lines.rest:
                frames.append(Frame(TAIL, stream, 0, time_ns, lines.rest))
        if frames:
            self._append(writer, frames)
        if waits:
            self._arm(writer)

    def _append(self, writer: _Writer, frames: list[Frame]) -> asyncio.Future[None]:
        """Give the frames their place and queue them."""
        piece = writer.piece
        data = b"".join(encode(frame) for frame in frames)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        offset = piece.end
        for frame in frames:
            if frame.kind == LINE:
                piece.last_seq = frame.seq
                piece.lines += 1
                piece.first_ns = min(piece.first_ns or frame.time_ns, frame.time_ns)
                piece.last_ns = max(piece.last_ns, frame.time_ns)
        piece.end += len(data)
        piece.spool_end = writer.had
        self._queue.append(_Append(writer, piece.segment, offset, data, dataclasses.replace(piece), written))
        writer.queued += 1
        self._latest = written
        if self._task is None:
            self._task = asyncio.ensure_future(self._write_queued())
            self._server.must_succeed(self._task)
        return written

    def _begin_piece(self, writer: _Writer) -> None:
        """Before more is taken in: go on to a new piece when this one is full.

        It begins with what the streams have begun: the last piece of a source is all that a restart has to read.
        """
        full = writer.piece
        if full.end - full.start < PIECE_BYTES:
            return
        segment, start = full.segment, full.end
        if full.end >= SEGMENT_BYTES:
            name, number = full.segment.rsplit(".", 1)
            segment, start = f"{name}.{int(number) + 1}", 0
        writer.piece = dataclasses.replace(
            full, seq=self._next_seq(), segment=segment, start=start, end=start, first_ns=0, last_ns=0, last_seq=0, lines=0, lost_before=0
        )
        frames = [Frame(TAIL, stream, 0, writer.heard.get(stream, (0, 0))[1], rest) for stream, rest in writer.rests()]
        if frames:
            self._append(writer, frames)

    def _next_seq(self) -> int:
        """Microseconds since 1970, or one more than the last: goes on over restarts even when every line was dropped."""
        self._last_seq = max(self._last_seq + 1, self._server.now_ms() * 1000)
        return self._last_seq

    # ------------------------------------------------------------ the one writer

    async def _write_queued(self) -> None:
        batch: list[_Append] = []
        try:
            while self._queue:
                batch, self._queue = self._queue, []
                await self._write(batch)
        except asyncio.CancelledError:
            for append in (*batch, *self._queue):
                append.written.cancel()
            raise
        except Exception as error:
            # Nothing may be acknowledged after it.
            for append in (*batch, *self._queue):
                if not append.written.done():
                    append.written.set_exception(error)
            raise
        finally:
            self._task = None

    async def _write(self, batch: list[_Append]) -> None:
        writes = [(append.segment, append.offset, append.data) for append in batch if append.data]
        while writes:
            try:
                await asyncio.to_thread(self._segments.write, writes)
                break
            except OSError as error:
                if not await self.retention.drop_for_room(self._written_now()):
                    LOG.error("logs wait: %s can't be written: %s. Make room on that disk", self._segments.folder, error)
                    await asyncio.sleep(RETRY_S)
        unit = self._server.unit()
        last = {append.piece.seq: append.piece for append in batch}
        for piece in sorted(last.values(), key=lambda piece: max(piece.last_seq, piece.seq)):       # as the index wants them
            self.index.put(piece)
            unit.put(piece)
        await self._server.commit_soon(unit)
        self._show(batch)
        await self.retention.keep_limit(self._written_now())

    def _show(self, batch: list[_Append]) -> None:
        self.shown = max([self.shown, *(append.piece.last_seq for append in batch)])
        apps = set()
        for append in batch:
            writer = append.writer
            writer.queued -= 1
            writer.synced = max(writer.synced, append.piece.spool_end)
            self._let_go(writer)
            apps.add(append.piece.app_id)
            if not append.written.done():
                append.written.set_result(None)
        for app_id in apps:
            self._server.topics.wake(("logs", app_id))

    def _let_go(self, writer: _Writer) -> None:
        """Once all is committed the index knows where a source goes on: only ranks that live keep their writer."""
        if not writer.queued and (writer.piece.ended or not writer.source[0]) and self._writers.get(writer.source) is writer:
            del self._writers[writer.source]

    def _written_now(self) -> set[str]:
        return {writer.piece.segment for writer in self._writers.values()}

    # ------------------------------------------------------------ writers

    def _writer_of(self, member: Member) -> _Writer:
        source = (member.assignment, member.rank, member.app_id)
        return self._writer(source, member.app_id, member.function_id, member.cluster_id, member.task_id)

    def _writer(self, source: Source, app_id: str, function_id: str, cluster_id: str, task_id: str) -> _Writer:
        writer = self._writers.get(source)
        if writer is not None:
            return writer
        last = self.index.last(source)
        if last is not None:
            writer = _Writer(source, dataclasses.replace(last))
            self._take_up(writer)
        else:
            assignment, rank, _ = source
            name = f"{app_id}/{assignment}-{rank}.0" if assignment else f"{app_id}/system.0"
            writer = _Writer(source, LogPiece(self._next_seq(), app_id, function_id, cluster_id, task_id, assignment, rank, name, 0, 0))
        self._writers[source] = writer
        return writer

    def _take_up(self, writer: _Writer) -> None:
        """Go on where an earlier server stopped: what streams had begun stands in the last piece."""
        piece = writer.piece
        for frame in decode(self._segments.read(piece.segment, piece.start, piece.end)):
            lines = writer.streams.setdefault(frame.stream, Lines())
            lines.rest = lines.rest + frame.data if frame.kind == TAIL else b""
            writer.heard[frame.stream] = (self._server.now_ms(), frame.time_ns)

    def _recover(self) -> None:
        """Make segments and index agree: cut what was never acknowledged, and count only what a loss of power has left."""
        ends: dict[str, LogPiece] = {}
        for piece in self._server.world[LogPiece].values():
            if piece.segment not in ends or ends[piece.segment].end < piece.end:
                ends[piece.segment] = piece
        for name, piece in ends.items():
            size = self._segments.size(name)
            if size > piece.end:
                self._segments.cut(name, piece.end)
            elif size < piece.end:
                piece.end = piece.start + whole(self._segments.read(name, piece.start, piece.end))
        for name in self._segments.names() - set(ends):
            self._segments.drop(name)


def _done() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def _not_had(had: int, offset: int, records: list[tuple[int, int, bytes]], end_offset: int) -> list[tuple[int, int, bytes]]:
    """The records behind `had`. A record in the spool is its bytes and a header; all headers have one length."""
    if offset >= had or not records:
        return records
    header = max((end_offset - offset - sum(len(data) for _, _, data in records)) // len(records), 0)
    fresh = []
    for record in records:
        if offset >= had:
            fresh.append(record)
        offset += header + len(record[2])
    return fresh

