"""Processes of the simulated world: what one of them started dies with it, at one moment, without a word."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class Life:
    """From the start of a process to its end. Tasks and timers that its code begins are its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.over = asyncio.Event()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._context = contextvars.Context()
        self._context.run(LIFE.set, self)

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run in this process."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call in this process."""
        return self._context.copy().run(function, *arguments)

    def kill(self) -> None:
        """kill -9: nothing of it runs any more. (Its tasks unwind, and nobody hears what they say then.)"""
        if self.dead:
            return
        self.dead = True
        for task in list(self._tasks):
            task.cancel()
        self.over.set()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        if self.dead:
            task.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)


def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run as nobody's: people, shims and ranks outlive control planes and agents."""
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


def task_factory(loop: asyncio.AbstractEventLoop, work: Any, context: contextvars.Context | None = None) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, context=context) if context is not None else asyncio.Task(work, loop=loop)
    life = context.get(LIFE) if context is not None else LIFE.get()
    if life is not None:
        life.adopt(task)
    return task
