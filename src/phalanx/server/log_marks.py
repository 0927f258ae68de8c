"""What a rank printed before it put a result comes before that result: its agent is asked to send the rest, and answers behind it.

A result and a log go different ways (the rank's API socket; shim, spool and agent), and the log's is the longer one. Asked when the rank
puts its result, the agent answers while that is still being written to disk.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.model.app import App, AppState
from phalanx.model.cluster import Member

if TYPE_CHECKING:
    from phalanx.server.server import Server

# The client reads lines and results in tasks of their own: of what comes in one piece it may print the result first. Its very first line it
# prints after loading half of rich (20 ms were not enough on a quiet machine).
HEAD_START_S, FIRST_HEAD_START_S = 0.005, 0.1
PATIENCE_S = 0.2        # an agent that is busy, or of a version that knows no such question, holds no result up for longer


@dataclass(eq=False)
class Follower:
    """A client that is shown an app's log as it comes: all lines up to `seq` were sent to it, and by `shown_s` of the loop's time it has
    printed them."""

    seq: int
    shown_s: float = 0.0


class LogMarks:
    """The noun `server.log_marks`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._open: dict[tuple[int, int], tuple[int, asyncio.Future[None]]] = {}
        self._followers: dict[str, set[Follower]] = defaultdict(set)

    def ask(self, assignment: int, rank: int) -> None:
        """A rank puts a result. Nothing is asked where nobody at a terminal watches."""
        member = self._server.world[Member].get((assignment, rank))
        if member is None or not self.is_watched(member.app_id):
            return
        number = next(self._numbers)
        self._open[assignment, rank] = (number, asyncio.get_running_loop().create_future())
        self._server.agents.ask_mark(member, number)
        self._server.clock.call_after(round(PATIENCE_S * 1000), lambda: self.came(assignment, rank, number))

    def came(self, assignment: int, rank: int, number: int) -> None:
        """The agent's answer: everything before it is readable, for an agent's words are heard one after the other."""
        asked = self._open.get((assignment, rank))
        if asked is not None and asked[0] == number:
            del self._open[assignment, rank]
            asked[1].set_result(None)

    def is_watched(self, app_id: str) -> bool:
        """By `modal run`. Who calls a deployed function does not wait for its log."""
        app = self._server.world[App].get(app_id)
        return app is not None and app.state == AppState.EPHEMERAL and bool(self._followers.get(app_id))

    async def settle(self, app_id: str, assignments: Collection[int]) -> None:
        """Return when clients that follow the app were sent what those ranks wrote before they put their results, or after a while."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + PATIENCE_S
        waiting = [future for (assignment, _), (_, future) in self._open.items() if assignment in assignments]
        if waiting:
            await asyncio.wait(waiting, timeout=PATIENCE_S)
        upto = self._server.logs.shown
        while any(follower.seq < upto for follower in self._followers.get(app_id, ())):
            left = ends - loop.time()
            if left <= 0 or not await self._server.topics.wait(("followed", app_id), left):
                return
        shown_s = max((follower.shown_s for follower in self._followers.get(app_id, ())), default=0.0)
        if shown_s > loop.time():
            await asyncio.sleep(shown_s - loop.time())

    @contextmanager
    def following(self, app_id: str, seq: int) -> Iterator[Follower]:
        """While a client follows; say by `sent` how far it is."""
        follower = Follower(seq)
        self._followers[app_id].add(follower)
        try:
            yield follower
        finally:
            self._followers[app_id].discard(follower)
            if not self._followers[app_id]:
                del self._followers[app_id]
            self._server.topics.wake(("followed", app_id))

    def sent(self, app_id: str, follower: Follower, seq: int) -> None:
        if seq > follower.seq:
            head_start_s = HEAD_START_S if follower.shown_s else FIRST_HEAD_START_S
            follower.seq, follower.shown_s = seq, max(follower.shown_s, asyncio.get_running_loop().time() + head_start_s)
        self._server.topics.wake(("followed", app_id))
