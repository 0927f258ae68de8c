"""Waiting on conditions, for stories over real threads and processes. No test asserts how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], timeout_s: float = 30) -> Any:
    """Return the condition's first true value; fail when it has none in time."""
    ends = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < ends, "the condition did not come true"
        time.sleep(0.01)
    return value
