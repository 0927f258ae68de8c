"""How an agent's boot clock stands to the server's wall clock, from its heartbeats: when, in server time, did a rank end?"""

from __future__ import annotations

from collections import deque

KEPT = 24           # heartbeats: two minutes
STEP_MS = 2_000     # more than the least delayed heartbeat of late: then the wall clock was set, not the message delayed


class AgentClock:
    def __init__(self) -> None:
        self._offsets: deque[int] = deque(maxlen=KEPT)      # server's clock minus agent's, each with its heartbeat's delay

    def heard(self, boottime_ms: int, now_ms: int) -> None:
        """A heartbeat that says the agent's time."""
        offset = now_ms - boottime_ms
        if self._offsets and offset > min(self._offsets) + STEP_MS:
            self._offsets.clear()
        self._offsets.append(offset)

    def server_time_ms(self, boottime_ms: int, now_ms: int) -> int:
        """By the least delayed heartbeat, and not after now. Before the first heartbeat nothing is known: now."""
        if not self._offsets:
            return now_ms
        return min(boottime_ms + min(self._offsets), now_ms)
