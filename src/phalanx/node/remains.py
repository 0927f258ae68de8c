"""What could not be removed of a container: its node takes no work until it is gone, which is looked for again and again (case 74).

A process that hangs in the kernel dies when its disk or driver answers, or gives up; nobody should have to restart the agent for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .saying import say

LOOK_SECONDS = 5.0

Look = Callable[[], Awaitable[str]]


@dataclass(frozen=True)
class Left:
    """`sentence`: why these nodes take no work. `look` tries again to remove it, and answers what remains, or nothing."""

    node_ids: tuple[str, ...]
    sentence: str
    look: Look


class Remains:
    """`changed` is called with a node of which something is gone at last."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._left: dict[str, Left] = {}        # by the container's name

    def of(self, node_id: str) -> str:
        """Why the node takes no work, or nothing."""
        return next((left.sentence for left in self._left.values() if node_id in left.node_ids), "")

    def keep(self, name: str, left: Left) -> None:
        """Something of that container remains. What was said of it first stays."""
        if name not in self._left:
            self._left[name] = left

    def drop(self, name: str) -> None:
        """Nothing of that container remains."""
        left = self._left.pop(name, None)
        for node_id in left.node_ids if left is not None else ():
            self._changed(node_id)

    async def watch(self) -> None:
        """Look again, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for name, left in list(self._left.items()):
                if not await left.look():
                    say(f"nothing remains of {name} any more")
                    self.drop(name)
