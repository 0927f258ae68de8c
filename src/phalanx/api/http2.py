"""The server half of HTTP/2 (RFC 9113) as gRPC uses it, lean: one write for an answer, no object for a frame.

grpclib on h2 took half of the server's time under load, 0.4 ms a request (docs/decisions.md). Header compression is hpack's for what comes
in; what goes out are literals without state. A request has the methods of grpclib's stream that our services use.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

import grpclib.const
from grpclib.const import Status
from hpack import Decoder, HPACKError

from phalanx.api.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEAD,
    HEADERS,
    PADDED,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    trailers,
)  # fmt: skip
from phalanx.api.http2_request import Request

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW = 16 * 2**20             # that we offer, of a connection and of a stream
ACK_BYTES = WINDOW // 4         # taken in before the other side is told that there is room again
FRAME = 16_384                  # the longest that we take: what holds when nothing is said
MOST_STREAMS = 1000
GATHER_BYTES = 64 << 10
MOST_HEADERS = 64 << 10
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, REFUSED_STREAM, COMPRESSION_ERROR, CALM = 0, 1, 3, 6, 7, 9, 11
SETTINGS_INITIAL_WINDOW_SIZE, SETTINGS_MAX_FRAME_SIZE = 4, 5


class ProtocolError(Exception):
    """The other side broke the protocol: the connection ends with this code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Connection(asyncio.Protocol):
    """One connection and its open requests."""

    def __init__(self, mapping: Mapping[str, grpclib.const.Handler]) -> None:
        self._mapping = mapping
        self._decoder = Decoder(MOST_HEADERS)
        self._buffer = bytearray()
        self._wants_preface = True
        self._headers: tuple[int, int, bytearray] | None = None        # a header block that goes on: stream, flags, what came
        self._last_stream = 0
        self._untold = 0                        # bytes taken in since the last update of the connection's window
        self._transport: Any = None
        self._outgoing: list[bytes] = []
        self._size = 0
        self._closing = False
        self.requests: dict[int, Request] = {}
        self.send_window = 65_535
        self.initial_window = 65_535
        self.frame_size = FRAME
        self.may_send = asyncio.Event()         # the transport is not full, and a window may have opened

    # ------------------------------------------------------------ for the listener

    def close(self) -> None:
        """End every request; the connection itself is the transport's."""
        self._closing = True
        for request in list(self.requests.values()):
            request.cancel()

    def check_closed(self) -> bool:
        """Does nothing of it remain?"""
        return self._closing and not self.requests

    def accepted(self, request: Request) -> None:
        """A subclass may look at a request before it begins."""
        request.begin()

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.may_send.set()
        settings = struct.pack(">HIHIHI", 3, MOST_STREAMS, SETTINGS_INITIAL_WINDOW_SIZE, WINDOW, 6, MOST_HEADERS)
        self.write(frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65_535)))

    def connection_lost(self, error: Exception | None) -> None:
        self.close()
        self.may_send.set()

    def pause_writing(self) -> None:
        self.may_send.clear()

    def resume_writing(self) -> None:
        self.may_send.set()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            if self._wants_preface:
                if len(buffer) < len(PREFACE):
                    return
                if not buffer.startswith(PREFACE):
                    raise ProtocolError(PROTOCOL_ERROR, "no preface")
                self._wants_preface, at = False, len(PREFACE)
            while len(buffer) - at >= 9:
                length = buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2]
                if length > FRAME:
                    raise ProtocolError(FRAME_SIZE_ERROR, f"a frame of {length} bytes")
                if len(buffer) - at < 9 + length:
                    break
                stream = int.from_bytes(buffer[at + 5 : at + 9], "big") & 0x7FFFFFFF
                self._frame(buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at + 9 : at + 9 + length]))
                at += 9 + length
        except (ProtocolError, HPACKError, struct.error, IndexError, UnicodeDecodeError) as error:
            self._go_away(_code_of(error), str(error))
            at = len(buffer)
        if at:
            del buffer[:at]

    # ------------------------------------------------------------ out

    def write(self, data: bytes) -> None:
        """Goes out with all that is written in this turn of the loop."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(data)
        self._size += len(data)
        if self._size > GATHER_BYTES:       # at once, so that the transport can tell us to pause
            self._flush()

    def is_open(self, stream: int) -> bool:
        """Is there still somebody to answer?"""
        return stream in self.requests and not self._transport.is_closing()

    def finished(self, stream: int, was_whole: bool) -> None:
        """Its answer is out. A client that still sends is told that nobody listens."""
        if not was_whole:
            self.write(frame(RST_STREAM, 0, stream, struct.pack(">I", NO_ERROR)))
        self.ended(stream)

    def ended(self, stream: int) -> None:
        """The request is over, for both sides."""
        self.requests.pop(stream, None)

    def took(self, stream: int, size: int, stream_open: bool) -> None:
        """Bytes of a request's body are used: there is room for more."""
        if stream_open:
            self.write(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size)))
        self._untold += size
        if self._untold >= ACK_BYTES:
            self.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._untold)))
            self._untold = 0

    def _flush(self) -> None:
        if self._outgoing:
            data = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
            self._outgoing.clear()
            self._size = 0
            if not self._transport.is_closing():
                self._transport.write(data)

    def _go_away(self, code: int, why: str) -> None:
        self.write(frame(GOAWAY, 0, 0, struct.pack(">II", self._last_stream, code) + why.encode()[:200]))
        self._flush()
        self._transport.close()

    # ------------------------------------------------------------ in

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._headers is not None and (kind != CONTINUATION or stream != self._headers[0]):
            raise ProtocolError(PROTOCOL_ERROR, "a header block was not ended")
        if kind == DATA:
            self._data(flags, stream, payload)
        elif kind == HEADERS:
            start, end = _unpadded(flags, payload)
            self._header_block(stream, flags, bytearray(payload[start + (5 if flags & HAS_PRIORITY else 0) : end]))
        elif kind == CONTINUATION:
            if self._headers is None:
                raise ProtocolError(PROTOCOL_ERROR, "a continuation of nothing")
            _, first_flags, block = self._headers
            self._header_block(stream, first_flags | flags & END_HEADERS, block + payload)
        elif kind == RST_STREAM:
            request = self.requests.get(stream)
            if request is not None:
                request.cancel()
        elif kind == SETTINGS:
            if not flags & ACK:
                self._settings(payload)
        elif kind == PING:
            if not flags & ACK:
                self.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._window_update(stream, struct.unpack(">I", payload)[0] & 0x7FFFFFFF)
        elif kind == PUSH_PROMISE:
            raise ProtocolError(PROTOCOL_ERROR, "a client does not push")
        # GOAWAY: its requests may still end; PRIORITY and what is not known are of no interest

    def _header_block(self, stream: int, flags: int, block: bytearray) -> None:
        if len(block) > MOST_HEADERS:
            raise ProtocolError(CALM, "headers beyond all measure")
        if not flags & END_HEADERS:
            self._headers = (stream, flags, block)
            return
        self._headers = None
        headers: dict[str, str] = {}
        for name, value in self._decoder.decode(bytes(block)):
            headers[str(name)] = str(value)
        if stream in self.requests:      # trailers: gRPC's clients send none that say anything
            if flags & END_STREAM:
                self.requests[stream].received(b"", True)
            return
        if not stream % 2 or stream <= self._last_stream:
            if stream <= self._last_stream:
                return                   # of a request that is over for us
            raise ProtocolError(PROTOCOL_ERROR, f"stream {stream} is not a client's")
        self._last_stream = stream
        if len(self.requests) >= MOST_STREAMS or self._closing:
            self.write(frame(RST_STREAM, 0, stream, struct.pack(">I", REFUSED_STREAM)))
            return
        self._open(stream, headers, bool(flags & END_STREAM))

    def _open(self, stream: int, headers: dict[str, str], is_whole: bool) -> None:
        handler = self._mapping.get(headers.get(":path", ""))
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            status = b"405" if headers.get(":method") != "POST" else b"415"
            self.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x08\x03" + status))
            return
        if handler is None:
            self.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, HEAD + trailers(Status.UNIMPLEMENTED, "Method not found")))
            return
        request = Request(self, stream, headers, handler, self.initial_window)
        self.requests[stream] = request
        if is_whole:
            request.received(b"", True)
        self.accepted(request)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        request = self.requests.get(stream)
        if request is None:
            if stream > self._last_stream:
                raise ProtocolError(PROTOCOL_ERROR, "data of no request")
            self.took(stream, len(payload), False)
            return
        start, end = _unpadded(flags, payload)
        if start or end != len(payload):
            self.took(stream, len(payload) - (end - start), True)
        request.received(payload[start:end], bool(flags & END_STREAM))

    def _settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload):
            if name == SETTINGS_INITIAL_WINDOW_SIZE:
                if value > 2**31 - 1:
                    raise ProtocolError(FLOW_CONTROL_ERROR, "a window beyond 2^31 - 1")
                for request in self.requests.values():
                    request.send_window += value - self.initial_window
                self.initial_window = value
                self._opened()
            elif name == SETTINGS_MAX_FRAME_SIZE:
                if not FRAME <= value < 2**24:
                    raise ProtocolError(PROTOCOL_ERROR, f"frames of {value} bytes")
                self.frame_size = value
        self.write(frame(SETTINGS, ACK, 0, b""))

    def _window_update(self, stream: int, more: int) -> None:
        if not more:
            raise ProtocolError(PROTOCOL_ERROR, "a window update of nothing")
        if not stream:
            self.send_window += more
        elif stream in self.requests:
            self.requests[stream].send_window += more
        self._opened()

    def _opened(self) -> None:
        for request in self.requests.values():
            request.window_opened()


def _code_of(error: Exception) -> int:
    if isinstance(error, ProtocolError):
        return error.code
    return COMPRESSION_ERROR if isinstance(error, HPACKError) else PROTOCOL_ERROR


def _unpadded(flags: int, payload: bytes) -> tuple[int, int]:
    if not flags & PADDED:
        return 0, len(payload)
    if payload[0] >= len(payload):
        raise ProtocolError(PROTOCOL_ERROR, "more padding than frame")
    return 1, len(payload) - payload[0]
