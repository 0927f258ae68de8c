"""A client that says any bytes to a connection of ours, without a socket, and reads back frame by frame what it answers."""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from google.protobuf.wrappers_pb2 import StringValue
from hpack import Decoder, Encoder

from phalanx.api.http2 import PREFACE, Connection
from phalanx.api.http2_frames import DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, frame
from tests.harness.toy_service import Toy


class Wire:
    """The transport: keeps what is written. `reads=False`: a client that does not read."""

    def __init__(self, connection: Connection, reads: bool = True) -> None:
        self.connection = connection
        self.reads = reads
        self.said = bytearray()
        self.unread = 0
        self.is_paused = False
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.said += data
        if not self.reads:
            before, self.unread = self.unread, self.unread + len(data)
            if before <= 65_536 < self.unread:
                self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.unread

    def read_all(self) -> None:
        self.reads, self.unread = True, 0
        self.connection.resume_writing()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Raw:
    """`frames()` is all that came since the last time, as (kind, flags, stream, payload)."""

    def __init__(self, reads: bool = True, preface: bool = True) -> None:
        self.toy = Toy()
        self.connection = Connection(self.toy.__mapping__())
        self.wire = Wire(self.connection, reads)
        self.connection.connection_made(self.wire)      # type: ignore[arg-type]
        self._encoder = Encoder()
        self._decoder = Decoder()
        if preface:
            self.say(PREFACE + frame(4, 0, 0, b""))

    def say(self, *parts: bytes) -> None:
        for part in parts:
            if not self.wire.is_closed:
                self.connection.data_received(part)

    def headers(self, stream: int, name: str = "Echo", flags: int = END_HEADERS, **more: str) -> bytes:
        fields = {":method": "POST", ":scheme": "http", ":path": f"/toy.Toy/{name}", "content-type": "application/grpc", "te": "trailers"}
        fields |= {key.replace("_", "-"): value for key, value in more.items()}
        return self.block(stream, list(fields.items()), flags)

    def block(self, stream: int, fields: list[tuple[str, str]], flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, stream, self._encoder.encode(fields))

    def ask(self, stream: int, name: str = "Echo", text: str = "hello", **more: str) -> bytes:
        return self.headers(stream, name, **more) + frame(DATA, END_STREAM, stream, message(text))

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        heard, at, data = [], 0, bytes(self.wire.said)
        while at < len(data):
            size = int.from_bytes(data[at : at + 3], "big")
            kind, flags, stream = struct.unpack(">BBI", data[at + 3 : at + 9])
            heard.append((kind, flags, stream, data[at + 9 : at + 9 + size]))
            at += 9 + size
        assert at == len(data), "a frame was cut short"
        self.wire.said.clear()
        return heard

    async def answer(self, stream: int) -> tuple[dict[str, str], bytes]:
        """All headers and the data of one stream, until now."""
        await settled()
        self.frames_of = [one for one in self.frames() if one[2] == stream]
        headers: dict[str, str] = {}
        for kind, _, _, payload in self.frames_of:
            if kind == HEADERS:
                headers |= {str(name): str(value) for name, value in self._decoder.decode(payload)}
        return headers, b"".join(payload for kind, _, _, payload in self.frames_of if kind == DATA)

    async def lost(self) -> None:
        """The connection breaks; nothing of it may remain."""
        self.wire.is_closed = True
        self.connection.connection_lost(None)
        await settled()
        left = self.connection
        assert not left.requests and not left.blocked and not left.buffered and not left._tasks and left.check_closed()


async def settled() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def message(text: str) -> bytes:
    data = StringValue(value=text).SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


def codes(frames: list[tuple[int, int, int, bytes]]) -> dict[int, int]:
    """The error a stream was reset with, or the connection (0) ended with."""
    where = {RST_STREAM: slice(0, 4), GOAWAY: slice(4, 8)}
    return {stream: int.from_bytes(payload[where[kind]], "big") for kind, _, stream, payload in frames if kind in where}


def story(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine. What the loop had to report fails it: nothing may go wrong unseen."""

    def test(**arguments: Any) -> None:
        async def run() -> None:
            reported: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
            await function(**arguments)
            assert not reported

        asyncio.run(run())

    test.__name__ = function.__name__
    test.__doc__ = function.__doc__
    test.__signature__ = inspect.signature(function)    # type: ignore[attr-defined]
    return test
