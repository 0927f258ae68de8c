"""The server's clock and timers: injected, so that tests step hours in milliseconds (design rule 9)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970. Never goes back, and never jumps, while the server lives."""
        ...

    def elapsed_ms(self) -> int:
        """Milliseconds since some moment, whatever is done to the wall clock."""
        ...

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """Run `action` in the event loop, `delay_ms` from now."""
        ...


class RealClock:
    """The machine's wall clock as it was at the server's start, and the time since boot from there on.

    Somebody may set the wall clock meanwhile (NTP's first step, a person): that must not end apps as if their clients had
    been silent for minutes, nor let a retry or an idle cluster wait for a time that its timer has passed. The next start
    takes the new time; rows from before it then lie some minutes in the past or future, which delays, and loses nothing.
    """

    def __init__(self) -> None:
        self._started_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def now_ms(self) -> int:
        return (self._started_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000

    def elapsed_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(delay_ms, 0) / 1000, action)
