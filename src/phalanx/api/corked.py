"""One write to the kernel for all that a turn of the event loop has to say to a connection.

grpclib writes an answer's headers, its message and its trailers one by one: three system calls, and the reader (a shim, which passes bytes
on, and the client behind it) is woken for each. A quarter of the server's own time in a warm call, and as much again in shims and runners.
"""

from __future__ import annotations

import asyncio
from typing import Any

_AT_ONCE = 64 * 1024        # bytes that are not held back: the transport's own flow control must see them


class Corked:
    """Stands for a transport; what is not about writing goes through."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._held:
            asyncio.get_running_loop().call_soon(self._flush)
        self._held.append(data)
        self._size += len(data)
        if self._size >= _AT_ONCE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._held:
            held, self._held, self._size = self._held, [], 0
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))
