"""The server half of HTTP/2 (RFC 9113) as gRPC uses it, lean: one write for an answer, no object for a frame.

grpclib on h2 took half of the server's time under load, 0.4 ms a request (docs/decisions.md). Headers that come in are read with hpack's
tables (http2_headers.py); what goes out are literals without state. A request has the methods of grpclib's stream that our services use.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

import grpclib.const
from grpclib.const import Status
from hpack import HPACKError

from phalanx.api import http2_rules as rules
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
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    trailers,
)  # fmt: skip
from phalanx.api.http2_headers import HeaderDecoder
from phalanx.api.http2_request import Request, Task
from phalanx.api.http2_rules import WINDOW, ProtocolError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ACK_BYTES = WINDOW // 4         # taken in before the other side is told that there is room again
GATHER_BYTES = 64 << 10
MOST_UNSENT = 1 << 20           # answers that nobody reads, before we stop to read what asks for more of them
GOODBYE_S = 5.0                 # for a client that broke the protocol to read that it did


class Connection(asyncio.Protocol):
    """One connection and its open requests."""

    def __init__(self, mapping: Mapping[str, grpclib.const.Handler], task: Task | None = None) -> None:
        self._mapping = mapping
        self.task = task                        # whose requests all of them are, where a shim said so
        self._decoder = HeaderDecoder(rules.MOST_HEADERS)
        self._buffer = bytearray()
        self._wants_preface = True
        self._headers: tuple[int, int, bytearray] | None = None        # a header block that goes on: stream, flags, what came
        self._continuations = 0
        self._last_stream = 0
        self._room = WINDOW                     # what the other side may still send on all streams
        self._untold = 0                        # bytes taken in since the last update of the connection's window
        self._tasks = 0                         # handlers that have not ended
        self._transport: Any = None
        self._outgoing: list[bytes] = []
        self._size = 0
        self._closing = False
        self.requests: dict[int, Request] = {}
        self.blocked: set[Request] = set()      # that wait for a window to open
        self.buffered = 0                       # bytes that no handler has read yet
        self.send_window = 65_535
        self.initial_window = 65_535
        self.frame_size = rules.FRAME
        self.may_send = asyncio.Event()         # the transport is not full, and a window may have opened

    # ------------------------------------------------------------ for the listener

    def close(self) -> None:
        """End every request; the connection itself is the transport's."""
        self._closing = True
        self._flush()       # answers of this very turn
        for request in list(self.requests.values()):
            request.cancel()

    def check_closed(self) -> bool:
        """Does nothing of it remain?"""
        return self._closing and not self.requests

    def _task_ended(self, _: asyncio.Task[None]) -> None:
        self._tasks -= 1

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.may_send.set()
        settings = struct.pack(">HIHIHI", 3, rules.MOST_STREAMS, rules.SETTINGS_INITIAL_WINDOW_SIZE, WINDOW, 6, rules.MOST_HEADERS)
        self.write(frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65_535)))

    def connection_lost(self, error: Exception | None) -> None:
        self.close()
        self.may_send.set()

    def pause_writing(self) -> None:
        self.may_send.clear()

    def resume_writing(self) -> None:
        self.may_send.set()
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            if self._wants_preface:
                if len(buffer) < len(PREFACE):
                    return
                if not buffer.startswith(PREFACE):
                    raise ProtocolError(rules.PROTOCOL_ERROR, "no preface")
                self._wants_preface, at = False, len(PREFACE)
            while len(buffer) - at >= 9:
                length = buffer[at] << 16 | buffer[at + 1] << 8 | buffer[at + 2]
                if length > rules.FRAME:
                    raise ProtocolError(rules.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
                if len(buffer) - at < 9 + length:
                    break
                stream = int.from_bytes(buffer[at + 5 : at + 9], "big") & 0x7FFFFFFF
                self._frame(buffer[at + 3], buffer[at + 4], stream, bytes(buffer[at + 9 : at + 9 + length]))
                at += 9 + length
        except (ProtocolError, HPACKError) as error:
            self._go_away(error.code if isinstance(error, ProtocolError) else rules.COMPRESSION_ERROR, str(error))
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
            self.write(frame(RST_STREAM, 0, stream, struct.pack(">I", rules.NO_ERROR)))
        self.ended(stream)

    def ended(self, stream: int) -> None:
        """The request is over, for both sides."""
        request = self.requests.pop(stream, None)
        if request is not None:
            self.blocked.discard(request)

    def took(self, stream: int, size: int, stream_open: bool) -> None:
        """Bytes of a request's body are used: there is room for more."""
        if stream_open and size:
            self.write(frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size)))
        self._untold += size
        if self._untold >= ACK_BYTES:
            self.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._untold)))
            self._room += self._untold
            self._untold = 0

    def _flush(self) -> None:
        if self._outgoing:
            data = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
            self._outgoing.clear()
            self._size = 0
            if not self._transport.is_closing():
                self._transport.write(data)
                if not self.may_send.is_set() and self._transport.get_write_buffer_size() > MOST_UNSENT:
                    self._transport.pause_reading()

    def _go_away(self, code: int, why: str) -> None:
        self.write(frame(GOAWAY, 0, 0, struct.pack(">II", self._last_stream, code) + why.encode()[:200]))
        self.close()
        self._transport.close()
        asyncio.get_running_loop().call_later(GOODBYE_S, self._transport.abort)

    def _reset(self, stream: int, code: int) -> None:
        """End one stream with an error; the connection goes on."""
        request = self.requests.get(stream)
        if request is not None:
            request.cancel()
        self.write(frame(RST_STREAM, 0, stream, struct.pack(">I", code)))

    # ------------------------------------------------------------ in

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._headers is not None and (kind != CONTINUATION or stream != self._headers[0]):
            raise ProtocolError(rules.PROTOCOL_ERROR, "a header block was not ended")
        if not stream % 2 and kind in (DATA, HEADERS, CONTINUATION):
            raise ProtocolError(rules.PROTOCOL_ERROR, f"stream {stream} is not a client's")
        if kind == DATA:
            self._data(flags, stream, payload)
        elif kind == HEADERS:
            start, end = rules.unpadded(flags, payload, 5 if flags & HAS_PRIORITY else 0)
            self._continuations = 0
            self._header_block(stream, flags, bytearray(payload[start:end]))
        elif kind == CONTINUATION:
            if self._headers is None:
                raise ProtocolError(rules.PROTOCOL_ERROR, "a continuation of nothing")
            _, first_flags, block = self._headers
            block += payload
            self._continuations += 1
            self._header_block(stream, first_flags | flags & END_HEADERS, block)
        else:
            rules.check_frame(kind, flags, stream, payload)
            self._control(kind, flags, stream, payload)

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (RST_STREAM, WINDOW_UPDATE) and stream and (stream > self._last_stream or not stream % 2):
            raise ProtocolError(rules.PROTOCOL_ERROR, f"stream {stream} was never opened")
        if kind == RST_STREAM:
            request = self.requests.get(stream)
            if request is not None:
                request.cancel()
        elif kind == SETTINGS and not flags & ACK:
            self._settings(rules.settings_of(payload))
        elif kind == PING and not flags & ACK:
            self.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._window_update(stream, int.from_bytes(payload, "big") & rules.WIDEST)
        # GOAWAY: its requests may still end; PRIORITY and what is not known are of no interest

    def _header_block(self, stream: int, flags: int, block: bytearray) -> None:
        if len(block) > rules.MOST_HEADERS or self._continuations > rules.MOST_CONTINUATIONS:
            raise ProtocolError(rules.CALM, "headers beyond all measure")
        if not flags & END_HEADERS:
            self._headers = (stream, flags, block)
            return
        self._headers = None
        fields = self._decoder.decode(bytes(block))     # always: it keeps state for the headers that follow
        is_whole = bool(flags & END_STREAM)
        request = self.requests.get(stream)
        if request is not None:                 # trailers: gRPC's clients send none that say anything
            if not is_whole or request.is_whole:
                self._reset(stream, rules.STREAM_CLOSED if request.is_whole else rules.PROTOCOL_ERROR)
                return
            request.received(b"", True)
            return
        if stream <= self._last_stream:
            return                              # of a request that is over for us
        self._last_stream = stream
        if len(self.requests) >= rules.MOST_STREAMS or self._closing:
            self._reset(stream, rules.REFUSED_STREAM)
            return
        try:
            headers = rules.headers_of(fields)
        except rules.MalformedRequest:
            self._reset(stream, rules.PROTOCOL_ERROR)
            return
        self._open(stream, headers, is_whole)

    def _open(self, stream: int, headers: dict[str, str], is_whole: bool) -> None:
        handler = self._mapping.get(headers.get(":path", ""))
        if headers.get(":method") != "POST" or not headers.get("content-type", "").startswith("application/grpc"):
            status = b"405" if headers.get(":method") != "POST" else b"415"
            self.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x08\x03" + status))
            return
        if handler is None:
            self.write(frame(HEADERS, END_HEADERS | END_STREAM, stream, HEAD + trailers(Status.UNIMPLEMENTED, "Method not found")))
            return
        if self._tasks >= rules.MOST_TASKS:
            raise ProtocolError(rules.CALM, "requests are reset faster than they can end")
        request = Request(self, stream, headers, handler)
        self.requests[stream] = request
        if is_whole:
            request.received(b"", True)
        self._tasks += 1
        request.begin().add_done_callback(self._task_ended)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._room -= len(payload)
        if self._room < 0:
            raise ProtocolError(rules.FLOW_CONTROL_ERROR, "more data than the connection's window has room for")
        start, end = rules.unpadded(flags, payload)
        request = self.requests.get(stream)
        if request is None:
            if stream > self._last_stream:
                raise ProtocolError(rules.PROTOCOL_ERROR, "data of no request")
            self.took(stream, len(payload), False)
            return
        request.room -= len(payload)
        if request.is_whole or request.room < 0:
            self.took(stream, len(payload), False)
            self._reset(stream, rules.STREAM_CLOSED if request.is_whole else rules.FLOW_CONTROL_ERROR)
            return
        if end - start != len(payload):
            request.room += len(payload) - (end - start)
            self.took(stream, len(payload) - (end - start), True)
        self.buffered += end - start
        request.received(payload[start:end], bool(flags & END_STREAM))

    def _settings(self, settings: dict[int, int]) -> None:
        self.frame_size = settings.get(rules.SETTINGS_MAX_FRAME_SIZE, self.frame_size)
        if rules.SETTINGS_INITIAL_WINDOW_SIZE in settings:
            self.initial_window = settings[rules.SETTINGS_INITIAL_WINDOW_SIZE]
            self._opened()
        self.write(frame(SETTINGS, ACK, 0, b""))

    def _window_update(self, stream: int, more: int) -> None:
        if not more:
            raise ProtocolError(rules.PROTOCOL_ERROR, "a window update of nothing")
        request = self.requests.get(stream)
        if not stream:
            self.send_window += more
            if self.send_window > rules.WIDEST:
                raise ProtocolError(rules.FLOW_CONTROL_ERROR, "a window beyond 2^31 - 1")
            self._opened()
        elif request is not None:
            request.added += more
            if self.initial_window + request.added > rules.WIDEST:
                self._reset(stream, rules.FLOW_CONTROL_ERROR)
                return
            request.window_opened()

    def _opened(self) -> None:
        """Each that finds it still too small comes back."""
        blocked, self.blocked = self.blocked, set()
        for request in blocked:
            request.window_opened()
