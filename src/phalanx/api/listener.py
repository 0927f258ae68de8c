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

import grpclib.server
from grpclib.config import Configuration
from grpclib.encoding.proto import ProtoCodec
from grpclib.events import _DispatchServerEvents
from grpclib.protocol import H2Protocol
from h2.config import H2Configuration

from phalanx.api.corked import Corked
from phalanx.api.transport import AUTHORITY, TASK_OF_CONNECTION

HTTP2 = b"PRI * HTTP/2.0"
PREAMBLE_LIMIT = 512

Task = tuple[str, int, int]
"""(task id, assignment, rank)"""


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
        self._handlers: set[grpclib.server.Handler] = set()

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
        handler = _Handler(mapping, task)
        self._handlers.add(handler)
        config = Configuration(http2_connection_window_size=16 * 2**20, http2_stream_window_size=16 * 2**20).__for_server__()
        # What grpclib sends is in order, and what it receives it looks at itself: h2 need not look again at every header.
        checks = dict.fromkeys(("validate_inbound_headers", "validate_outbound_headers", "normalize_outbound_headers"), False)
        return H2Protocol(handler, config, H2Configuration(client_side=False, header_encoding="ascii", **checks))

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
        self._connections = {t for t in self._connections if not t.is_closing()}
        self._handlers = {h for h in self._handlers if not h.check_closed()} if len(self._handlers) > 64 else self._handlers
        self._connections.add(transport)


class _Handler(grpclib.server.Handler):
    """Remembers, for every request of one connection, the task it came from."""

    def __init__(self, mapping: dict[str, grpclib.const.Handler], task: Task | None) -> None:
        super().__init__(mapping, ProtoCodec(), None, _DispatchServerEvents())
        self._task = task

    def accept(self, stream: Any, headers: Any, release_stream: Any) -> None:
        task = TASK_OF_CONNECTION.set(self._task)
        authority = AUTHORITY.set(next((value for name, value in headers if name == ":authority"), ""))
        try:
            super().accept(stream, headers, release_stream)  # creates the request's task, which copies this context
        finally:
            TASK_OF_CONNECTION.reset(task)
            AUTHORITY.reset(authority)


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
        if not self._buffer:
            return
        protocol = self._listener.choose(self._buffer, self._line)
        if protocol is None:
            self._transport.abort()
            return
        self._transport.set_protocol(protocol)
        protocol.connection_made(Corked(self._transport) if isinstance(protocol, H2Protocol) else self._transport)  # type: ignore[arg-type]
        protocol.data_received(self._buffer)
