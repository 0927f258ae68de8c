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
        """Wall clock, milliseconds since 1970."""
        ...

    def elapsed_ms(self) -> int:
        """Milliseconds since some moment, whatever is done to the wall clock."""
        ...

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """Run `action` in the event loop, `delay_ms` from now."""
        ...


class RealClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(delay_ms, 0) / 1000, action)
