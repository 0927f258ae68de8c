"""An event loop whose time is a number: when nobody has anything to do it is at once the moment of the next timer.

Threads do not exist in it: what would run in one runs at its call. So the order of everything follows from the seed.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

EPOCH_S = 1_800_000_000      # the wall clock at the beginning of every world


class Standstill(Exception):
    """Everybody waits for something, and nothing will happen any more."""


class _NoSockets(selectors.SelectSelector):
    """Waiting takes no time: the loop is told how long it would have taken."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Standstill("nobody has anything to do, and no timer is set")
        self.passed_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._selector_of_time = _NoSockets()
        super().__init__(self._selector_of_time)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._selector_of_time.passed_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def run(self, story: Coroutine[Any, Any, Any]) -> Any:
        """Run to its end, then let go of everything that still goes on."""
        asyncio.set_event_loop(self)
        try:
            return self.run_until_complete(story)
        finally:
            left = asyncio.all_tasks(self)
            for task in left:
                task.cancel()
            if left:
                self.run_until_complete(asyncio.wait(left, timeout=60))
            asyncio.set_event_loop(None)
            self.close()


class VirtualTime:
    """In the place of the module `time`: the wall clock may jump, the others never do."""

    CLOCK_BOOTTIME = 7
    CLOCK_MONOTONIC = 1

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.jumped_s = 0.0

    def monotonic(self) -> float:
        return self._loop.time()

    def perf_counter(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return EPOCH_S + self._loop.time() + self.jumped_s

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def clock_gettime_ns(self, _: int) -> int:
        return int(self._loop.time() * 1e9)

    def monotonic_ns(self) -> int:
        return self.clock_gettime_ns(0)
