"""RPCs about logs: the stream that a client follows, and the two by which it reads back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from modal_proto import api_pb2

from phalanx.model.app import AppState
from phalanx.model.caller import Caller
from phalanx.model.cluster import Member
from phalanx.model.logs import LogFilter, LogLine
from phalanx.model.refusal import invalid, not_found
from phalanx.model.work import Function
from phalanx.server.log_display import Shown
from phalanx.server.log_marks import Follower
from phalanx.server.log_reading import LogCursor
from phalanx.server.server import Server
from phalanx.server.unit import Unit

LOG = logging.getLogger("phalanx.api")

LONGEST_S = 55.0            # a stream; the client opens the next one itself
DEPLOYED_TAIL = 100         # lines that following a deployed app begins with: its history is for AppFetchLogs
MOST_ITEMS = 500            # in one message
MOST_FETCHED = 20_000       # lines; the client's own limit
AFTER_A_BUG_S = 5.0         # clients reopen a broken stream at once, without end


class Logs:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._reading = server.logs.reading

    async def AppGetLogs(self, request: Any, caller: Caller) -> AsyncIterator[Any]:
        app_id, member = self._whose(request)
        wanted = self._filter(request, request.file_descriptor)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(request.timeout, 0.0), LONGEST_S)
        try:
            cursor = self._reading.cursor(app_id, await self._after(request, app_id, wanted), wanted)
            with self._server.log_marks.following(app_id, cursor.seq) as follower:
                async for batch in self._follow(app_id, member, cursor, deadline, follower):
                    yield batch
        except Exception:   # not one the client may see: it would ask again at once, and for ever
            LOG.exception("AppGetLogs of %s failed", app_id)
            await asyncio.sleep(min(AFTER_A_BUG_S, max(deadline - loop.time(), 0)))

    async def AppFetchLogs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        app_id, _ = self._whose(request)
        since, until = _span(request)
        limit = min(request.limit or MOST_FETCHED, MOST_FETCHED)
        lines = await self._reading.fetch(app_id, since, until, limit, self._filter(request, request.source))
        return api_pb2.AppFetchLogsResponse(batches=list(Batches(self._server).of(lines)))

    async def AppCountLogs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        app_id, _ = self._whose(request)
        since, until = _span(request)
        if request.bucket_secs <= 0:
            raise invalid(f"bucket_secs is {request.bucket_secs}: a bucket is at least one second")
        counts = await self._reading.count(app_id, since, until, request.bucket_secs, self._filter(request, request.source))
        response = api_pb2.AppCountLogsResponse(app_id=app_id)
        for second, lines in sorted(counts.items()):
            bucket = response.buckets.add(stdout_logs=lines[1], stderr_logs=lines[2], system_logs=lines[3])
            bucket.bucket_start_at.FromSeconds(second)
        return response

    # ------------------------------------------------------------ what is asked

    def _whose(self, request: Any) -> tuple[str, Member | None]:
        """The app, and the container when the request is about one."""
        member = None
        if request.task_id:
            member = self._server.gangs.by_task.get(request.task_id)
            if member is None:
                raise not_found("Container", request.task_id, "`modal container list` shows those that run")
        app_id = request.app_id or (member.app_id if member else "")
        self._server.apps.get(app_id)
        return app_id, member

    def _filter(self, request: Any, stream: int) -> LogFilter:
        functions = self._reading.function_ids(request.function_id) if request.function_id else frozenset()
        parametrized = getattr(request, "parametrized_function_id", "")
        if parametrized:
            functions = frozenset((parametrized,))
        return LogFilter(
            stream=stream,
            function_ids=functions,
            task_id=request.task_id,
            call_id=request.function_call_id,
            input_id=getattr(request, "input_id", ""),
            search=getattr(request, "search_text", ""),
        )

    async def _after(self, request: Any, app_id: str, wanted: LogFilter) -> int:
        if request.last_entry_id.isdigit():
            return int(request.last_entry_id)
        app = self._server.apps.get(app_id)
        if app.state == AppState.DEPLOYED and not wanted.task_id and not wanted.call_id:
            return await self._reading.start_of_tail(app_id, DEPLOYED_TAIL, wanted)
        return 0

    # ------------------------------------------------------------ following

    async def _follow(
        self, app_id: str, member: Member | None, cursor: LogCursor, deadline: float, follower: Follower
    ) -> AsyncIterator[Any]:
        """Batches until the deadline, or until there will be no more."""
        logs, topics, loop = self._server.logs, self._server.topics, asyncio.get_running_loop()
        batches = Batches(self._server)
        sent = cursor.seq
        version = 0
        while True:
            # Looked at before the lines: what is over now has all its lines before us.
            over = self._reading.is_over(app_id, member)
            shown = [] if member is not None else logs.display.since(app_id, version)
            if shown:
                version = max(item.version for item in shown)
                for item in shown:
                    yield _display(item)
            lines, exhausted = cursor.next()
            for batch in batches.of(lines):
                sent = int(batch.entry_id or sent)
                yield batch
            if not exhausted:
                await asyncio.sleep(0)
                continue
            self._server.log_marks.sent(app_id, follower, cursor.seq)
            if over:
                for batch in batches.finish():
                    yield batch
                yield api_pb2.TaskLogsBatch(entry_id=str(cursor.seq), app_done=True)
                return
            left = deadline - loop.time()
            if left <= 0:
                break
            if lines or shown:      # to send them took a while, and what came meanwhile woke nobody: look again before a wait
                continue
            await topics.wait_any((("logs", app_id), ("app", app_id)), left)
        if cursor.seq > sent:    # lines that were not for this client: it need not look at them again
            yield api_pb2.TaskLogsBatch(entry_id=str(cursor.seq))


class Batches:
    """Lines as messages. One goes on as long as the container does not change.

    The client puts what comes on one file descriptor together until a line ends, whoever wrote it. So when another rank's line
    comes behind one without an end, that one gets its newline here; nothing is added between parts of one rank's line.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._open: dict[int, LogLine] = {}

    def of(self, lines: Iterable[LogLine]) -> Iterator[Any]:
        batch = None
        for line in lines:
            ended = self._ended_by(line)
            if ended is not None:
                if batch is not None:
                    yield batch
                    batch = None
                yield self._batch(ended, [_item(ended, "\n")])
            same = batch is not None and (batch.task_id, batch.function_id) == (line.task_id, line.function_id)
            if batch is not None and (not same or len(batch.items) >= MOST_ITEMS):
                yield batch
                batch = None
            if batch is None:
                batch = self._batch(line, [])
            batch.items.append(_item(line, line.text))
            batch.entry_id = str(line.seq)
        if batch is not None:
            yield batch

    def finish(self) -> Iterator[Any]:
        """The newlines that are still missing: behind this the client prints lines of its own."""
        for line in self._open.values():
            yield self._batch(line, [_item(line, "\n")])
        self._open.clear()

    def _ended_by(self, line: LogLine) -> LogLine | None:
        """The open line on the same descriptor that this one, of another source, comes behind."""
        before = self._open.pop(line.stream, None)
        if line.is_open:
            self._open[line.stream] = line
        if before is None or (before.assignment, before.rank, before.task_id) == (line.assignment, line.rank, line.task_id):
            return None
        return before

    def _batch(self, line: LogLine, items: list[Any]) -> Any:
        function = self._server.world[Function].get(line.function_id)
        return api_pb2.TaskLogsBatch(
            task_id=line.task_id,
            function_id=line.function_id,
            root_function_id=function.bound_to or line.function_id if function else line.function_id,
            items=items,
        )


def _item(line: LogLine, text: str) -> Any:
    item = api_pb2.TaskLogs(
        data=text,
        file_descriptor=line.stream,
        timestamp=line.time_ns / 1e9,
        function_call_id=line.call_id,
        input_id=line.input_id,
    )
    if "timestamp_ns" in _ITEM_FIELDS:
        item.timestamp_ns = line.time_ns
    if "container_id" in _ITEM_FIELDS and line.task_id:
        item.container_id = line.task_id
        item.container_name = f"rank {line.rank}" if line.assignment else ""
    return item


_ITEM_FIELDS = api_pb2.TaskLogs.DESCRIPTOR.fields_by_name


def _display(item: Shown) -> Any:
    """No entry id: it is not a line, and a client that comes back gets it as it is then."""
    if item.task_id:
        return api_pb2.TaskLogsBatch(task_id=item.task_id, function_id=item.function_id, items=[api_pb2.TaskLogs(task_state=item.state)])
    progress = api_pb2.TaskProgress(
        len=item.length, pos=item.position, progress_type=api_pb2.FUNCTION_QUEUED, description=item.description
    )
    return api_pb2.TaskLogsBatch(function_id=item.function_id, items=[api_pb2.TaskLogs(task_progress=progress)])


def _span(request: Any) -> tuple[int, int]:
    """Since and until in nanoseconds; no until means now and later."""
    since = request.since.ToNanoseconds()
    until = request.until.ToNanoseconds() if request.HasField("until") else 1 << 62
    if until < since:
        raise invalid("the time range ends before it begins: `since` must be before `until`")
    return since, until
