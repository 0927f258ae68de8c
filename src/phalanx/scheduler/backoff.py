"""When a request may be tried again: after failed starts, after it was stopped for others, and when a node keeps refusing."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_MS = 1_000
MOST_MS = 5 * 60_000
REFUSALS = 3               # in a row, until a node is set aside
ASIDE_MS = 10 * 60_000


def retry_at_ms(now_ms: int, failures: int) -> int:
    """After the n-th failed start in a row: 1 s, 2 s, 4 s... at most 5 min. Its place in the queue stays."""
    return now_ms + min(MOST_MS, FIRST_MS << min(max(failures, 1) - 1, 20))


def requeue_at_ms(now_ms: int, evictions: int) -> int:
    """A gang that comes back after it had `evictions` others stopped for it waits longer each time, 0 the first time.

    Otherwise a gang that crashes at its start stops others again and again.
    """
    return now_ms if evictions <= 0 else now_ms + min(MOST_MS, 30_000 << min(evictions - 1, 10))


@dataclass
class Refusals:
    """Start refusals per node. One that refuses three times in a row is set aside for a while, with the reason."""

    counts: dict[str, int] = field(default_factory=dict)
    until_ms: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def refused(self, node_id: str, why: str, now_ms: int) -> bool:
        """Count a refusal. True: the node is set aside from now on."""
        self.counts[node_id] = self.counts.get(node_id, 0) + 1
        if self.counts[node_id] < REFUSALS:
            return False
        self.until_ms[node_id] = now_ms + ASIDE_MS
        self.why[node_id] = f"refused {self.counts[node_id]} starts: {why}"
        return True

    def accepted(self, node_id: str) -> None:
        """A start went well: the count begins anew."""
        for table in (self.counts, self.until_ms, self.why):
            table.pop(node_id, None)

    def aside(self, now_ms: int) -> dict[str, str]:
        """Nodes to show as cordoned now, and why. One whose time is over gets one more try before it goes again."""
        for node_id in [n for n, until in self.until_ms.items() if until <= now_ms]:
            del self.until_ms[node_id], self.why[node_id]
            self.counts[node_id] = REFUSALS - 1
        return {node_id: self.why[node_id] for node_id in sorted(self.until_ms)}
