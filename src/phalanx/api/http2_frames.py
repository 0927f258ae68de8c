"""What goes out on an HTTP/2 connection, byte by byte: frames (RFC 9113), literal headers (RFC 7541), gRPC's trailers."""

from __future__ import annotations

import struct
from urllib.parse import quote

from grpclib.const import Status

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY, ACK = 1, 4, 8, 32, 1
LONGEST_MESSAGE = 12_000
_PLAIN = "".join(chr(c) for c in range(0x20, 0x7F) if c != 0x25)     # what grpc-message need not escape


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">BHBBI", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header that neither side remembers."""
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def trailers(status: Status, message: str | None = None) -> bytes:
    said = literal(b"grpc-message", _escaped(message)) if message is not None else b""
    return literal(b"grpc-status", str(status.value).encode()) + said


def _escaped(message: str) -> bytes:
    """As gRPC wants it; cut where it would not go into one frame."""
    escaped = quote(message, safe=_PLAIN, errors="replace")[:LONGEST_MESSAGE]
    return (escaped[:-2] + escaped[-2:].partition("%")[0]).encode("ascii")


def _length(size: int) -> bytes:
    """An integer with a prefix of seven bits (RFC 7541, 5.1)."""
    if size < 127:
        return bytes((size,))
    out, size = bytearray((127,)), size - 127
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out)


HEAD = b"\x88" + literal(b"content-type", b"application/grpc+proto")     # :status 200
GOOD = trailers(Status.OK)
