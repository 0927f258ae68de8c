"""What the other side of an HTTP/2 connection must keep to (RFC 9113), as far as a gRPC server meets it: limits, frames, headers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any

from phalanx.api.http2_frames import ACK, GOAWAY, PADDED, PING, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM = 0, 1, 3, 5, 6, 7
COMPRESSION_ERROR, CALM = 9, 11
SETTINGS_ENABLE_PUSH, SETTINGS_INITIAL_WINDOW_SIZE, SETTINGS_MAX_FRAME_SIZE = 2, 4, 5

WIDEST = 2**31 - 1              # of any window
WINDOW = 16 * 2**20             # that we offer, of a connection and of a stream
FRAME = 16_384                  # the longest that we take: what holds when nothing is said
MOST_STREAMS = 1000             # open at once
MOST_TASKS = 4 * MOST_STREAMS   # handlers not ended yet, with those of requests that were reset: more is a flood of resets
MOST_HEADERS = 64 << 10
MOST_CONTINUATIONS = 64         # of one header block: empty ones would go on for ever
LONGEST_MESSAGE = 128 << 20     # a batch of the client's map has 49 inputs of up to 2 MiB; larger values come as blobs
MOST_BUFFERED = 2 * LONGEST_MESSAGE     # of one connection's messages that are not whole yet

_LENGTHS = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_STREAMS = frozenset({PRIORITY, RST_STREAM})
_OF_CONNECTIONS = frozenset({SETTINGS, PING, GOAWAY})
_PSEUDO = frozenset({":method", ":scheme", ":authority", ":path"})
_OF_HTTP1 = frozenset({"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"})
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class ProtocolError(Exception):
    """The other side broke the protocol: the connection ends with this code."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class MalformedRequest(Exception):
    """Headers that no request may have: its stream is reset, the connection goes on."""


def check_frame(kind: int, flags: int, stream: int, payload: bytes) -> None:
    """Of every kind but DATA, HEADERS and CONTINUATION: is it where it belongs, and as long as it must be?"""
    if kind == PUSH_PROMISE:
        raise ProtocolError(PROTOCOL_ERROR, "a client does not push")
    if (kind in _OF_CONNECTIONS and stream) or (kind in _OF_STREAMS and not stream):
        raise ProtocolError(PROTOCOL_ERROR, f"a frame of kind {kind} on stream {stream}")
    size = len(payload)
    wrong = size != _LENGTHS.get(kind, size)
    if kind == SETTINGS:
        wrong = bool(size % 6 or (flags & ACK and size))
    elif kind == GOAWAY:
        wrong = size < 8
    if wrong:
        raise ProtocolError(FRAME_SIZE_ERROR, f"a frame of kind {kind} with {size} bytes")


def settings_of(payload: bytes) -> dict[int, int]:
    """The last value of each: one frame may name one a thousand times."""
    settings = dict(struct.iter_unpack(">HI", payload))
    if settings.get(SETTINGS_ENABLE_PUSH, 0) > 1:
        raise ProtocolError(PROTOCOL_ERROR, "push is on or off")
    if settings.get(SETTINGS_INITIAL_WINDOW_SIZE, 0) > WIDEST:
        raise ProtocolError(FLOW_CONTROL_ERROR, "a window beyond 2^31 - 1")
    if not FRAME <= settings.get(SETTINGS_MAX_FRAME_SIZE, FRAME) < 2**24:
        raise ProtocolError(PROTOCOL_ERROR, f"frames of {settings[SETTINGS_MAX_FRAME_SIZE]} bytes")
    return settings


def unpadded(flags: int, payload: bytes, before: int = 0) -> tuple[int, int]:
    """Where the content begins and ends; `before` bytes of something else come first."""
    padding = 0
    if flags & PADDED:
        if not payload:
            raise ProtocolError(FRAME_SIZE_ERROR, "padding without its length")
        padding, before = payload[0], before + 1
    if before + padding > len(payload):
        raise ProtocolError(PROTOCOL_ERROR, "more padding than frame")
    return before, len(payload) - padding


def headers_of(fields: Iterable[tuple[Any, Any]]) -> dict[str, str]:
    """A request's headers by name, the first of each; raises MalformedRequest. Checked together: every request pays for it."""
    headers: dict[str, str] = {}
    has_regular = False
    for name, value in fields:
        if name[:1] != ":":
            has_regular = True
            headers.setdefault(name, value)
        elif has_regular or name not in _PSEUDO or name in headers:
            raise MalformedRequest(f"{name} where it may not be")
        else:
            headers[name] = value
    names = "".join(headers)
    if names != names.lower() or "" in headers or not _OF_HTTP1.isdisjoint(headers) or headers.get("te", "trailers") != "trailers":
        raise MalformedRequest("a header that is not for HTTP/2")
    text = names + "".join(headers.values())
    if not text.isprintable() and _CONTROL.search(text):
        raise MalformedRequest("control characters in a header")
    if not (headers.get(":method") and headers.get(":path") and headers.get(":scheme")):
        raise MalformedRequest("no method, path or scheme")
    return headers
