"""Ways between real processes that a test can cut: a Unix socket to the control plane, and UDP between two agents."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path

Address = tuple[str, int]


class Door:
    """A Unix socket that leads to another one while it is not cut. Cut, every connection breaks and nobody listens."""

    def __init__(self, path: Path, leads_to: Path) -> None:
        self.path, self.leads_to = path, leads_to
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.mend()

    def mend(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        self.path.unlink(missing_ok=True)
        listener.bind(str(self.path))
        listener.listen(16)
        self._open.append(listener)
        self._start(self._accept, listener)

    def cut(self) -> None:
        """Also at the end of the test: no thread is left."""
        self.path.unlink(missing_ok=True)
        while self._open:
            one = self._open.pop()
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                inside, _ = listener.accept()
                outside = socket.socket(socket.AF_UNIX)
                self._open += [inside, outside]
                try:
                    outside.connect(str(self.leads_to))
                except OSError:
                    inside.close()
                    continue
                self._start(self._pump, inside, outside)
                self._start(self._pump, outside, inside)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _start(self, target, *arguments: socket.socket) -> None:  # type: ignore[no-untyped-def]
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()


class Link:
    """UDP between two agents, each of which takes our socket for the other. `is_cut`: nothing gets through."""

    def __init__(self, one: Address, other: Address) -> None:
        self.is_cut = False
        self._to = {}
        self._sockets = []
        for target in (one, other):
            facing = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            facing.bind(("127.0.0.1", 0))
            facing.setblocking(False)
            self._sockets.append(facing)
            self._to[facing] = target
        self._closing, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def facing(self, one: Address) -> str:
        """What that agent takes for the other's address."""
        facing = next(s for s in self._sockets if self._to[s] == one)
        return "{}:{}".format(*facing.getsockname())

    def close(self) -> None:
        self._end.send(b"x")
        self._thread.join()
        for one in (*self._sockets, self._closing, self._end):
            one.close()

    def _run(self) -> None:
        first, second = self._sockets
        while True:
            ready, _, _ = select.select([first, second, self._closing], [], [])
            if self._closing in ready:
                return
            for facing in ready:
                with contextlib.suppress(OSError):
                    data = facing.recv(65536)
                    out = second if facing is first else first
                    if not self.is_cut:
                        out.sendto(data, self._to[out])
