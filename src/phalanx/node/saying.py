"""The agent's own log: lines on stderr for whoever started it."""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import Any


def say(text: str) -> None:
    print(f"agent: {text}", file=sys.stderr, flush=True)


def say_failure(task: asyncio.Task[Any]) -> None:
    """A callback for tasks that nobody waits for: what went wrong in one is said at once."""
    if not task.cancelled() and (error := task.exception()) is not None:
        say("".join(traceback.format_exception(error)))
