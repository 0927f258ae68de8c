"""One gRPC request on an HTTP/2 connection: messages in, messages out, its end. Has what our services use of grpclib's server stream."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpclib.const
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from phalanx.api.http2_frames import DATA, END_HEADERS, END_STREAM, GOOD, HEAD, HEADERS, frame, trailers

if TYPE_CHECKING:
    from phalanx.api.http2 import Connection

LOG = logging.getLogger("phalanx.http2")

TELL_BYTES = 8 << 10        # of a request's body: with a thousand requests of it the connection's window stays open

_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Request:
    """Made with its headers; `begin` runs its handler in a task."""

    def __init__(self, connection: Connection, stream: int, headers: dict[str, str], handler: grpclib.const.Handler, window: int) -> None:
        self._connection = connection
        self._stream = stream
        self._handler = handler
        self._buffer = bytearray()
        self._unread = 0                    # bytes that came and of which the other side was not told yet that they are used
        self._is_whole = False              # nothing more will come
        self._arrived: asyncio.Event | None = None
        self._wider: asyncio.Event | None = None
        self._began_answer = False
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._timed_out = False
        self.metadata = headers
        self.send_window = window

    # ------------------------------------------------------------ for the connection

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run())
        timeout_s = _seconds(self.metadata.get("grpc-timeout", ""))
        if timeout_s is not None:
            self._deadline = loop.call_later(timeout_s, self._too_late)

    def received(self, data: bytes, is_last: bool) -> None:
        self._buffer += data
        self._unread += len(data)
        self._is_whole = self._is_whole or is_last
        if self._arrived is not None:
            self._arrived.set()

    def window_opened(self) -> None:
        if self._wider is not None:
            self._wider.set()

    def cancel(self) -> None:
        """The other side wants it no more, or is gone."""
        self._connection.ended(self._stream)
        if self._unread:
            self._connection.took(self._stream, self._unread, False)
            self._unread = 0
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------ for the handler

    async def recv_message(self) -> Any:
        """The next message, or None after the last."""
        while (data := self._next()) is None:
            self._tell_used()
            if self._is_whole:
                if self._buffer:
                    raise StreamTerminatedError("the request ended inside of a message")
                return None
            self._arrived = asyncio.Event()
            await self._arrived.wait()
            self._arrived = None
        self._tell_used()
        return self._handler.request_type.FromString(data)

    async def send_message(self, message: Any) -> None:
        data = message.SerializeToString()
        head = b"" if self._began_answer else frame(HEADERS, END_HEADERS, self._stream, HEAD)
        self._began_answer = True
        body = b"\0" + len(data).to_bytes(4, "big") + data
        if not await self._fits(len(body)):
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
            if not self._timed_out:
                raise
            status = Status.DEADLINE_EXCEEDED
        except (StreamTerminatedError, ConnectionError):
            status, sentence = Status.CANCELLED, "the request was not finished"
        except Exception:
            LOG.exception("%s failed", self.metadata.get(":path", ""))
            status, sentence = Status.UNKNOWN, "Internal Server Error"
        finally:
            if self._deadline is not None:
                self._deadline.cancel()
        self._finish(status, sentence)

    def _finish(self, status: Status, sentence: str | None) -> None:
        if self._connection.is_open(self._stream):
            block = GOOD if status is Status.OK else trailers(status, sentence)
            if not self._began_answer:
                block = HEAD + block
            self._connection.write(frame(HEADERS, END_HEADERS | END_STREAM, self._stream, block))
            self._connection.finished(self._stream, self._is_whole)
        if self._unread:
            self._connection.took(self._stream, self._unread, False)
            self._unread = 0

    def _too_late(self) -> None:
        self._timed_out = True
        if self._task is not None:
            self._task.cancel()

    def _next(self) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < 5:
            return None
        length = int.from_bytes(buffer[1:5], "big")
        if len(buffer) < 5 + length:
            return None
        if buffer[0]:
            raise GRPCError(Status.UNIMPLEMENTED, "compressed messages are not supported")
        data = bytes(buffer[5 : 5 + length])
        del buffer[: 5 + length]
        return data

    def _tell_used(self) -> None:
        if self._unread >= TELL_BYTES or (self._unread and self._is_whole):
            self._connection.took(self._stream, self._unread, not self._is_whole)
            self._unread = 0

    async def _fits(self, size: int) -> bool:
        """In one frame, now?"""
        await self._connection.may_send.wait()
        return size <= min(self.send_window, self._connection.send_window, self._connection.frame_size)

    def _spend(self, size: int) -> None:
        self.send_window -= size
        self._connection.send_window -= size

    async def _send_in_parts(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            await self._connection.may_send.wait()
            room = min(self.send_window, self._connection.send_window, self._connection.frame_size, len(body) - at)
            if room <= 0:
                self._wider = asyncio.Event()
                await self._wider.wait()
                self._wider = None
                continue
            self._spend(room)
            self._connection.write(frame(DATA, 0, self._stream, body[at : at + room]))
            at += room


def _seconds(text: str) -> float | None:
    """grpc-timeout: "15S", "1500m"."""
    if not text or not text[:-1].isdigit() or text[-1] not in _UNITS:
        return None
    return int(text[:-1]) * _UNITS[text[-1]]
