"""Who calls while there is no server: by a connection's first bytes, as the server's own listener tells them."""

from __future__ import annotations

import asyncio

from phalanx.front.away import AwayAnswers

HTTP2 = b"PRI "
PREAMBLE_LIMIT = 512


class Caller(asyncio.Protocol):
    """One accepted connection. `through_shim`: a line "PHALANX/1 ..." comes first. HTTP/2 is answered, HTTP/1.1 (blobs) waits."""

    def __init__(self, away: AwayAnswers, through_shim: bool) -> None:
        self._away = away
        self._wants_line = through_shim
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._wants_line and not self._read_line():
            return
        if len(self._received) < len(HTTP2):
            return
        if not self._received.startswith(HTTP2):
            self._transport.pause_reading()     # a blob: its sender tries again when the connection is cut
            self._away.hold(self._transport)
            return
        protocol = self._away.protocol()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._received)

    def _read_line(self) -> bool:
        line, newline, rest = self._received.partition(b"\n")
        if newline and line.startswith(b"PHALANX/1 "):
            self._wants_line, self._received = False, rest
            return True
        if newline or len(self._received) > PREAMBLE_LIMIT:
            self._transport.abort()
        return False
