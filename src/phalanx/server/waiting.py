"""Wake-ups for long polls: a poll waits on a topic, and a unit that changed what it waits for wakes it after its commit."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Hashable


class Topics:
    """Every waiter of a topic wakes at the next `wake`, in the order in which they began to wait; it then looks at the world again."""

    def __init__(self) -> None:
        self._waiters: dict[Hashable, dict[asyncio.Future[bool], None]] = defaultdict(dict)

    def wake(self, topic: Hashable) -> None:
        for waiter in self._waiters.pop(topic, ()):
            if not waiter.done():
                waiter.set_result(True)

    async def wait(self, topic: Hashable, timeout_s: float) -> bool:
        """True when woken, False at the timeout. Look at the world between two waits, without an await before this one."""
        return await self.wait_any((topic,), timeout_s)

    async def wait_any(self, topics: Collection[Hashable], timeout_s: float) -> bool:
        """As `wait`, for the first of several topics."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        for topic in topics:
            self._waiters[topic][waiter] = None
        timer = loop.call_later(timeout_s, _too_late, waiter)      # asyncio.wait_for does the same for three times the price
        try:
            return await waiter
        finally:
            timer.cancel()
            for topic in topics:
                self._forget(topic, waiter)

    def _forget(self, topic: Hashable, waiter: asyncio.Future[bool]) -> None:
        waiters = self._waiters.get(topic)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters[topic]


def _too_late(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
