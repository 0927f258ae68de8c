"""The container's way to the control plane: its own listening socket, each connection piped to the front's after one preamble line.

The listening socket stays open for the container's whole life. While the server is away, a connection is accepted and held, and the
preamble said again and again until somebody listens: neither client nor runner survives a refused connection for more than 0.7 s,
and both survive any pause. stdlib only.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import sys
from collections.abc import Callable

CHUNK = 256 * 1024
RETRY_FIRST, RETRY_MOST = 0.02, 0.5


class Relay:
    """One listening socket and the connections that came through it. `later(seconds, call)` is the shim's timer."""

    def __init__(
        self,
        listener: socket.socket,
        upstream: str,
        preamble: bytes,
        selector: selectors.BaseSelector,
        later: Callable[[float, Callable[[], None]], None],
        only_uid: int | None = None,
    ) -> None:
        """`only_uid`: on a loopback that the machine's users share, refuse connections of anybody else."""
        self.listener, self.upstream, self.preamble, self.selector, self.later = listener, upstream, preamble, selector, later
        self.only_uid = only_uid
        self.pipes: set[Pipe] = set()
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        self.selector.unregister(self.listener)
        self.listener.close()
        for pipe in list(self.pipes):
            pipe.close()

    def _accept(self, _events: int) -> None:
        try:
            client, peer = self.listener.accept()
        except OSError:
            return
        if self.only_uid is not None and _tcp_owner(peer) != self.only_uid:
            client.close()
            return
        pipe = Pipe(self, client)
        self.pipes.add(pipe)
        pipe.connect(RETRY_FIRST)


class Pipe:
    """One connection of the container and its counterpart at the front."""

    def __init__(self, relay: Relay, client: socket.socket) -> None:
        self.relay, self.client = relay, client
        self.server: socket.socket | None = None
        self.pending: dict[socket.socket, bytearray] = {}    # bytes still to be written to that socket
        self.ended: set[socket.socket] = set()               # sockets that have said their last byte
        self.closed = False
        client.setblocking(False)

    def connect(self, delay: float) -> None:
        """Reach the front, or try again a little later; the container's connection waits meanwhile."""
        if self.closed:
            return
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.connect(self.relay.upstream)
        except OSError:
            server.close()
            self.relay.later(delay, lambda: self.connect(min(delay * 2, RETRY_MOST)))
            return
        server.setblocking(False)
        self.server = server
        self.pending = {server: bytearray(self.relay.preamble), self.client: bytearray()}
        for end in (server, self.client):
            self.relay.selector.register(end, selectors.EVENT_READ, lambda events, end=end: self._ready(end, events))
        self._watch()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.relay.pipes.discard(self)
        for end in (self.client, self.server):
            if end is None:
                continue
            with contextlib.suppress(KeyError, ValueError):
                self.relay.selector.unregister(end)
            end.close()

    def _ready(self, end: socket.socket, events: int) -> None:
        if self.closed:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(end)
            if events & selectors.EVENT_READ:
                self._pull(end)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._watch()

    def _pull(self, end: socket.socket) -> None:
        other = self._other(end)
        data = end.recv(CHUNK)
        if data:
            self.pending[other] += data
            self._flush(other)
            return
        self.ended.add(end)
        self._flush(other)

    def _flush(self, end: socket.socket) -> None:
        pending = self.pending[end]
        while pending:
            try:
                sent = end.send(pending)
            except BlockingIOError:
                return
            del pending[:sent]
        if self._other(end) in self.ended:
            # A server that ended its side is gone for good; a container that did may still read the rest of its answers.
            if end is self.client or end in self.ended:
                self.close()
                return
            end.shutdown(socket.SHUT_WR)

    def _watch(self) -> None:
        """Read only from an end whose counterpart keeps up; write where there is something to write."""
        if self.closed:
            return
        for end in self.pending:
            wanted = 0
            if end not in self.ended and len(self.pending[self._other(end)]) < CHUNK:
                wanted |= selectors.EVENT_READ
            if self.pending[end]:
                wanted |= selectors.EVENT_WRITE
            self._register(end, wanted)

    def _register(self, end: socket.socket, wanted: int) -> None:
        selector = self.relay.selector
        key = selector.get_map().get(end)
        if wanted == 0:
            if key is not None:
                selector.unregister(end)
        elif key is None:
            selector.register(end, wanted, lambda events, end=end: self._ready(end, events))
        elif key.events != wanted:
            selector.modify(end, wanted, key.data)

    def _other(self, end: socket.socket) -> socket.socket:
        assert self.server is not None
        return self.server if end is self.client else self.client


def _tcp_owner(peer: tuple[str, int]) -> int | None:
    """The user whose socket has that IPv4 address and port, by the kernel's table; None when it is not there."""
    host, port = peer
    address = f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
    with open("/proc/net/tcp") as table:
        for row in table:
            fields = row.split()
            if fields[1] == address:
                return int(fields[7])
    return None
