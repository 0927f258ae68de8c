"""Connections: what comes in on a listening socket finds its protocol by its first bytes.

Public socket: HTTP/2 with prior knowledge is gRPC, anything else HTTP/1.1 (blobs). Tasks socket: a preamble line comes
first, `PHALANX/1 agent` or `PHALANX/1 task <task_id> <assignment> <secret>`, and then the same two.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

import grpclib.const

from phalanx.api.http2 import Connection
from phalanx.api.http2_request import Task

HTTP2 = b"PRI * HTTP/2.0"
PREAMBLE_LIMIT = 512


class Listener:
    """Serves gRPC mappings and an HTTP/1.1 protocol factory on sockets it is given."""

    def __init__(
        self,
        client_mapping: dict[str, grpclib.const.Handler],
        agent_mapping: dict[str, grpclib.const.Handler],
        http: Callable[[Task | None], asyncio.Protocol],
        authenticate: Callable[[str, int, str], Task | None],
    ) -> None:
        self._client_mapping = client_mapping
        self._agent_mapping = agent_mapping
        self._http = http
        self._authenticate = authenticate
        self.is_closed = False
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.BaseTransport] = set()
        self._handlers: set[Connection] = set()
        self._most = 64     # of both, until those that are over are dropped

    async def serve(self, public: socket.socket, tasks: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(lambda: _FirstBytes(self, preamble=False), sock=public, backlog=4096))
        # From Python 3.13 on a server removes its socket's path when it closes; this path is the front's.
        keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        self._servers.append(await loop.create_unix_server(lambda: _FirstBytes(self, preamble=True), sock=tasks, backlog=4096, **keep))

    async def close(self) -> None:
        """Stop accepting and cut what is open: clients come back to whoever holds the socket next."""
        self.is_closed = True       # what was accepted a moment ago and has no protocol yet is cut when it gets one
        for server in self._servers:
            server.close()
        for handler in list(self._handlers):
            handler.close()
        for transport in list(self._connections):
            transport.close()
        for _ in range(3):
            await asyncio.sleep(0)

    def grpc(self, mapping: dict[str, grpclib.const.Handler], task: Task | None) -> asyncio.Protocol:
        connection = Connection(mapping, task)
        self._handlers.add(connection)
        return connection

    def choose(self, first: bytes, line: bytes | None) -> asyncio.Protocol | None:
        """The protocol for a connection, by its preamble (tasks socket) and its first bytes; None: not one of ours."""
        if line is None:
            return self.grpc(self._client_mapping, None) if HTTP2.startswith(first[: len(HTTP2)]) else self._http(None)
        words = line.decode("ascii", "replace").split()
        if words == ["PHALANX/1", "agent"]:
            return self.grpc(self._agent_mapping, None)
        if len(words) != 5 or words[:2] != ["PHALANX/1", "task"] or not words[3].isdigit():
            return None
        task = self._authenticate(words[2], int(words[3]), words[4])
        if task is None:
            return None
        return self.grpc(self._client_mapping, task) if HTTP2.startswith(first[: len(HTTP2)]) else self._http(task)

    def opened(self, transport: asyncio.BaseTransport) -> None:
        self._connections.add(transport)
        if len(self._connections) + len(self._handlers) > self._most:      # not at every new one: with thousands it costs 2 ms
            self._connections = {t for t in self._connections if not t.is_closing()}
            self._handlers = {h for h in self._handlers if not h.check_closed()}
            self._most = 2 * (len(self._connections) + len(self._handlers)) + 64


class _FirstBytes(asyncio.Protocol):
    """Collects the preamble and the first bytes, then hands the connection over."""

    def __init__(self, listener: Listener, preamble: bool) -> None:
        self._listener = listener
        self._line: bytes | None = None
        self._wants_line = preamble
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._listener.is_closed:
            self._transport.abort()
            return
        self._listener.opened(transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._wants_line and self._line is None:
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                if len(self._buffer) > PREAMBLE_LIMIT:
                    self._transport.abort()
                return
            self._line, self._buffer = line, rest
        if len(self._buffer) < len(HTTP2) and HTTP2.startswith(self._buffer):
            return      # nothing yet, or "P": PUT and POST begin with it too
        protocol = self._listener.choose(self._buffer, self._line)
        if protocol is None:
            self._transport.abort()
            return
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._buffer)
