"""One gRPC request on an HTTP/2 connection: messages in, messages out, its end. Has what our services use of grpclib's server stream."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

import grpclib.const
from google.protobuf.message import DecodeError
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from phalanx.api.http2_frames import DATA, END_HEADERS, END_STREAM, GOOD, HEAD, HEADERS, frame, trailers
from phalanx.api.http2_rules import LONGEST_MESSAGE, MOST_BUFFERED, WINDOW

if TYPE_CHECKING:
    from phalanx.api.http2 import Connection

LOG = logging.getLogger("phalanx.http2")

TELL_BYTES = 8 << 10        # of a request's body: with a thousand requests of it the connection's window stays open

Task = tuple[str, int, int]
"""(task id, assignment, rank): a container whose shim opened the connection."""

_TIMEOUT = re.compile(r"[0-9]{1,8}[HMSmun]")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Request:
    """Made with its headers; `begin` runs its handler in a task."""

    def __init__(self, connection: Connection, stream: int, headers: dict[str, str], handler: grpclib.const.Handler) -> None:
        self._connection = connection
        self._stream = stream
        self._handler = handler
        self._buffer = bytearray()
        self._unread = 0                    # bytes that came and of which the other side was not told yet that they are used
        self._has_message = False           # one was read
        self._arrived: asyncio.Event | None = None
        self._wider: asyncio.Event | None = None
        self._began_answer = False
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._timed_out = False
        self._is_unwanted = False
        self.metadata = headers
        self.task = connection.task
        self.is_whole = False               # nothing more will come
        self.room = WINDOW                  # bytes that may still come
        self.added = 0                      # to the window that the other side offers every request: its updates, less what was sent

    # ------------------------------------------------------------ for the connection

    def begin(self) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run())
        timeout_s = _seconds(self.metadata.get("grpc-timeout", ""))
        if timeout_s is not None:
            self._deadline = loop.call_later(timeout_s, self._too_late)
        return self._task

    def received(self, data: bytes, is_last: bool) -> None:
        self._buffer += data
        self._unread += len(data)
        self.is_whole = self.is_whole or is_last
        if self._arrived is not None:
            self._arrived.set()

    def window_opened(self) -> None:
        if self._wider is not None:
            self._wider.set()

    def cancel(self) -> None:
        """The other side wants it no more, or is gone."""
        self._is_unwanted = True
        self._connection.ended(self._stream)
        self._let_go()
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------ for the handler

    async def recv_message(self) -> Any:
        """The next message, or None after the last."""
        while (data := self._next()) is None:
            if self._connection.buffered > MOST_BUFFERED:
                raise GRPCError(Status.RESOURCE_EXHAUSTED, "too many large messages come on this connection at once: send it again")
            self._tell_used()
            if self.is_whole:
                if self._buffer:
                    raise StreamTerminatedError("the request ended inside of a message")
                if not self._has_message and not self._handler.cardinality.client_streaming:
                    raise GRPCError(Status.INVALID_ARGUMENT, "the request has no message")
                return None
            self._arrived = asyncio.Event()
            await self._arrived.wait()
            self._arrived = None
        self._tell_used()
        self._has_message = True
        try:
            return self._handler.request_type.FromString(data)
        except DecodeError:
            sentence = f"the request's message is no {self._handler.request_type.DESCRIPTOR.full_name}"
            raise GRPCError(Status.INVALID_ARGUMENT, sentence) from None

    async def send_message(self, message: Any) -> None:
        """Of one task at a time. Raises StreamTerminatedError when nobody listens any more."""
        data = message.SerializeToString()
        await self._writable()
        head = b"" if self._began_answer else frame(HEADERS, END_HEADERS, self._stream, HEAD)
        self._began_answer = True
        body = b"\0" + len(data).to_bytes(4, "big") + data
        if len(body) > self._sendable():
            self._connection.write(head)
            await self._send_in_parts(body)
            return
        self._spend(len(body))
        self._connection.write(head + frame(DATA, 0, self._stream, body))

    # ------------------------------------------------------------ inside

    async def _run(self) -> None:
        status, sentence = Status.OK, None
        try:
            await self._handler.func(self)
        except GRPCError as error:
            status, sentence = error.status, error.message
        except asyncio.CancelledError:
            if self._is_unwanted:
                raise
            status, sentence = Status.DEADLINE_EXCEEDED, None
            if not self._timed_out:     # what it awaited was cancelled: there is still somebody to answer
                status, sentence = Status.UNAVAILABLE, "what this request waited for was given up: ask again"
        except (StreamTerminatedError, ConnectionError):
            status, sentence = Status.CANCELLED, "the request was not finished"
        except Exception:
            LOG.exception("%s failed", self.metadata.get(":path", ""))
            status, sentence = Status.UNKNOWN, "Internal Server Error"
        self._finish(status, sentence)

    def _finish(self, status: Status, sentence: str | None) -> None:
        if self._connection.is_open(self._stream):
            block = GOOD if status is Status.OK else trailers(status, sentence)
            if not self._began_answer:
                block = HEAD + block
            self._connection.write(frame(HEADERS, END_HEADERS | END_STREAM, self._stream, block))
            self._connection.finished(self._stream, self.is_whole)
        self._let_go()

    def _let_go(self) -> None:
        """Of what it holds: a handler that was cancelled before it began never comes to its end."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._unread:
            self._connection.took(self._stream, self._unread, False)
            self._unread = 0
        self._connection.buffered -= len(self._buffer)
        self._buffer.clear()

    def _too_late(self) -> None:
        self._timed_out = True
        if self._task is not None:
            self._task.cancel()

    def _next(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 5:
            return None
        if buffer[0]:
            raise GRPCError(Status.UNIMPLEMENTED, "compressed messages are not supported")
        length = int.from_bytes(buffer[1:5], "big")
        if length > LONGEST_MESSAGE:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes is too long: {LONGEST_MESSAGE} are the most")
        if len(buffer) < 5 + length:
            return None
        data = bytes(buffer[5 : 5 + length])
        del buffer[: 5 + length]
        self._connection.buffered -= 5 + length
        return data

    def _tell_used(self) -> None:
        if self._unread >= TELL_BYTES or (self._unread and self.is_whole):
            self._connection.took(self._stream, self._unread, not self.is_whole)
            self.room += self._unread
            self._unread = 0

    async def _writable(self) -> None:
        """Return when the transport takes more. Asks again after each wait: a thousand are woken at once, and the first fill it."""
        while not self._connection.may_send.is_set():
            await self._connection.may_send.wait()
        if not self._connection.is_open(self._stream):
            raise StreamTerminatedError("nobody listens any more")

    def _sendable(self) -> int:
        """Bytes that may go out in one frame now."""
        connection = self._connection
        return min(connection.initial_window + self.added, connection.send_window, connection.frame_size)

    def _spend(self, size: int) -> None:
        self.added -= size
        self._connection.send_window -= size

    async def _send_in_parts(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            await self._writable()
            size = min(self._sendable(), len(body) - at)
            if size <= 0:
                self._wider = asyncio.Event()
                self._connection.blocked.add(self)
                await self._wider.wait()
                self._wider = None
                continue
            self._spend(size)
            self._connection.write(frame(DATA, 0, self._stream, body[at : at + size]))
            at += size


def _seconds(text: str) -> float | None:
    """grpc-timeout: "15S", "1500m"; eight digits at most."""
    if not _TIMEOUT.fullmatch(text):
        return None
    return int(text[:-1]) * _UNITS[text[-1]]
