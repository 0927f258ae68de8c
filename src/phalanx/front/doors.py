"""Listening sockets that can be opened and shut without closing them: the kernel keeps what nobody accepts."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable


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
