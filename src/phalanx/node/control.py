"""The words between a shim and the agent: JSON lines over a Unix socket, version 1. stdlib only.

To the shim:   {"do": "start"} · {"do": "stop", "signal": 2, "grace_ms": 30000, "fenced": ""} · {"do": "check", "id": 1, "addresses": [...]}
               {"do": "acknowledge", "offset": 4711} · {"do": "release"} · {"do": "lease", "until_ms": …, "reached_ms": …}
To the agent:  {"say": "hello", "version": 1, "phase": "prepared", "boottime_ms": 0, "exit": null, "until_ms": 0, "reached_ms": 0}
               first, then
               {"say": "started", "boottime_ms": …} · {"say": "logs"} · {"say": "ended", "exit": {…}}
               {"say": "checked", "id": 1, "silent": [...]} · {"say": "released", "remains": ""}
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
from collections.abc import Callable
from typing import Any

VERSION = 1


class Listener:
    """The shim's side: every agent that connects gets what is said from then on."""

    def __init__(
        self,
        path_socket: socket.socket,
        selector: selectors.BaseSelector,
        hello: Callable[[], dict[str, Any]],
        obey: Callable[[dict[str, Any]], None],
    ) -> None:
        self.listener, self.selector, self.hello, self.obey = path_socket, selector, hello, obey
        self.peers: dict[socket.socket, tuple[bytearray, bytearray]] = {}     # received, still to be sent
        path_socket.setblocking(False)
        selector.register(path_socket, selectors.EVENT_READ, self._accept)

    def say(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n"
        for peer, (_, outgoing) in list(self.peers.items()):
            outgoing += line
            self._flush(peer)

    def say_once(self, **message: Any) -> None:
        """Like `say`, for news that one line tells as well as ten: skipped where an earlier one still waits to be sent."""
        line = json.dumps(message).encode() + b"\n"
        for peer, (_, outgoing) in list(self.peers.items()):
            if not outgoing.endswith(line):
                outgoing += line
                self._flush(peer)

    def _accept(self, _events: int) -> None:
        try:
            peer, _ = self.listener.accept()
        except OSError:
            return
        peer.setblocking(False)
        self.peers[peer] = (bytearray(), bytearray())
        self.selector.register(peer, selectors.EVENT_READ, lambda events: self._ready(peer, events))
        self.peers[peer][1].extend(json.dumps({"say": "hello", "version": VERSION, **self.hello()}).encode() + b"\n")
        self._flush(peer)

    def _ready(self, peer: socket.socket, events: int) -> None:
        if peer in self.peers and events & selectors.EVENT_WRITE:
            self._flush(peer)
        if peer not in self.peers or not events & selectors.EVENT_READ:
            return
        received, _ = self.peers[peer]
        try:
            data = peer.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        received += data
        while (end := received.find(b"\n")) >= 0:
            line = bytes(received[:end])
            del received[: end + 1]
            self.obey(json.loads(line))

    def _flush(self, peer: socket.socket) -> None:
        _, outgoing = self.peers[peer]
        try:
            while outgoing:
                del outgoing[: peer.send(outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if outgoing else 0)
        if self.selector.get_key(peer).events != wanted:
            self.selector.modify(peer, wanted, self.selector.get_key(peer).data)

    def _drop(self, peer: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(peer)
        self.peers.pop(peer, None)
        peer.close()
