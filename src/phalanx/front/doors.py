"""Listening sockets that can be opened and shut without closing them: the kernel keeps what nobody accepts."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

BACKLOG = 4096      # what connects between two servers waits here; the kernel cuts it to net.core.somaxconn


class Door:
    """Accepts from one listening socket while it is open."""

    def __init__(self, listening: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self.listening = listening
        self._protocol = protocol
        self._accepting: asyncio.Task[None] | None = None

    def open(self) -> None:
        if self._accepting is None:
            self._accepting = asyncio.create_task(self._accept())

    async def shut(self) -> None:
        if self._accepting is None:
            return
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._accepting = None

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                caller, _ = await loop.sock_accept(self.listening)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    await asyncio.sleep(1.0)       # full: those who wait in the backlog lose nothing
                continue
            await loop.connect_accepted_socket(self._protocol, caller)


def parse_address(listen: str) -> tuple[str, int]:
    """"127.0.0.1:8900" or "[::1]:8900". Raises ValueError with a sentence."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise ValueError(f"{listen!r} is no address to listen at: give HOST:PORT, like 127.0.0.1:8900 or [::1]:8900")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_tcp(listen: str) -> socket.socket:
    """Raises OSError or ValueError with a sentence."""
    host, port = parse_address(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(error.errno, f"{listen} is in use: stop what listens there, or choose another with --listen") from error
        raise OSError(error.errno, f"can't listen at {listen}: {error.strerror or error}") from error
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening


def listen_unix(path: Path) -> socket.socket:
    """For this user only. Whoever calls holds the lock that says no other front lives, so a file there is a dead one's."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(mask)
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening
