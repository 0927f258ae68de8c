"""A gRPC client that costs little: HTTP/2 by hand, for fakes that must not be what a benchmark measures.

It speaks to a server that it trusts: headers of answers are not read (an answer without a message is a failure), flow control of what it
sends is left to the sizes being small, and messages that are said within one turn of the event loop go out in one write.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Any

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
POST_HTTP = b"\x83\x86"      # the static table's :method POST, :scheme http
WINDOW = 2**30
FRAME = 16_384          # the longest that a server takes without saying so
MOST_STREAMS = 90       # unary requests at once: grpclib's server cuts a connection that opens more than 100


class WireError(Exception):
    """The connection ended, or the server refused: this client does not read why."""


class Wire(asyncio.Protocol):
    """One connection. `call` for unary requests, `open` for a stream of messages both ways."""

    def __init__(self, preamble: str = "", metadata: Mapping[str, str] | None = None) -> None:
        self._preamble = preamble
        same = {":authority": "fake", "te": "trailers", "content-type": "application/grpc", **(metadata or {})}
        # As real clients do: said in full once, and from then on by its place in the server's table, the last one at 62 (RFC 7541, 2.3.3).
        self._common = b"".join(b"\x40" + _text(name) + _text(value) for name, value in same.items())
        self._common_again = bytes(0x80 | 62 + n for n in reversed(range(len(same))))
        self._next = 1
        self._received: dict[int, bytearray] = {}
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._hearing: dict[int, Callable[[bytes | None], None]] = {}
        self._buffer = bytearray()
        self._outgoing: list[bytes] = []
        self._places = asyncio.Semaphore(MOST_STREAMS)
        self._loop = asyncio.get_running_loop()
        self.transport: Any = None

    @classmethod
    async def to_socket(cls, path: str, preamble: str, metadata: Mapping[str, str] | None = None) -> Wire:
        """A connection to a Unix socket that wants a line first."""
        _, wire = await asyncio.get_running_loop().create_unix_connection(lambda: cls(preamble, metadata), path)
        return wire

    @classmethod
    async def to_port(cls, host: str, port: int, metadata: Mapping[str, str] | None = None) -> Wire:
        _, wire = await asyncio.get_running_loop().create_connection(lambda: cls("", metadata), host, port)
        return wire

    async def call(self, path: str, message: bytes, headers: bytes = b"") -> bytes:
        """One unary request and its answer's bytes. Raises WireError."""
        async with self._places:
            stream = self._begin(path, headers)
            self._waiting[stream] = answer = self._loop.create_future()
            self._data_out(stream, _prefixed(message), END_STREAM)
            return await answer

    def open(self, path: str, hear: Callable[[bytes | None], None]) -> Callable[[bytes], None]:
        """A stream: `hear` gets each message, and None at the end; what is returned sends one."""
        stream = self._begin(path)
        self._hearing[stream] = hear
        return lambda message: self._data_out(stream, _prefixed(message), 0)

    def close(self) -> None:
        if self.transport is not None:
            self._flush()
            self.transport.close()

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        line = self._preamble.encode() + b"\n" if self._preamble else b""
        settings = _frame(SETTINGS, 0, 0, struct.pack(">HI", 4, WINDOW))
        self.transport.write(line + PREFACE + settings + _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW)))

    def connection_lost(self, error: Exception | None) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(WireError(f"the server closed the connection ({error or 'no reason'})"))
        hearing, self._hearing, self._waiting = list(self._hearing.values()), {}, {}
        for hear in hearing:
            hear(None)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 9:
            length = buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2]
            if len(buffer) - at < 9 + length:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big") & 0x7FFFFFFF
            self._frame_received(kind, flags, stream, bytes(buffer[at + 9 : at + 9 + length]))
            at += 9 + length
        if at:
            del buffer[:at]

    def _frame_received(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._data(stream, payload)
        elif kind == SETTINGS and not flags & ACK:
            self._write(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._write(_frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self.transport.close()
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self._ended(stream)

    def _data(self, stream: int, payload: bytes) -> None:
        received = self._received.setdefault(stream, bytearray())
        received += payload
        hear = self._hearing.get(stream)
        while hear is not None and len(received) >= 5:
            length = int.from_bytes(received[1:5], "big")
            if len(received) < 5 + length:
                return
            message = bytes(received[5 : 5 + length])
            del received[: 5 + length]
            hear(message)

    def _ended(self, stream: int) -> None:
        received = self._received.pop(stream, b"")
        answer = self._waiting.pop(stream, None)
        if answer is not None and not answer.done():
            if len(received) >= 5:
                answer.set_result(bytes(received[5:]))
            else:
                answer.set_exception(WireError("the server refused the request: its log may say why"))
        hear = self._hearing.pop(stream, None)
        if hear is not None:
            hear(None)

    # ------------------------------------------------------------ out

    def _begin(self, path: str, headers: bytes = b"") -> int:
        stream, self._next = self._next, self._next + 2
        # Names with a colon come first: the server refuses a request where they don't (RFC 9113, 8.3).
        self._write(_frame(HEADERS, END_HEADERS, stream, POST_HTTP + _header(":path", path) + self._common + headers))
        self._common = self._common_again
        return stream

    def _data_out(self, stream: int, data: bytes, flags: int) -> None:
        while len(data) > FRAME:
            self._write(_frame(DATA, 0, stream, data[:FRAME]))
            data = data[FRAME:]
        self._write(_frame(DATA, flags, stream, data))

    def _write(self, frame: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(frame)

    def _flush(self) -> None:
        if self._outgoing and not self.transport.is_closing():
            self.transport.write(b"".join(self._outgoing))
        self._outgoing.clear()


def _prefixed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _header(name: str, value: str) -> bytes:
    """A literal header that is not indexed: no state on either side."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127, f"{text!r} is too long for a header of this client"
    return bytes((len(data),)) + data


def header(name: str, value: str) -> bytes:
    """For `call`: one more header of this request."""
    return _header(name, value)
