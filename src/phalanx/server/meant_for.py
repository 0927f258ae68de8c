"""Which waiting inputs each missing cluster is for: said once, for the planner's requests, for what starts, and for nodes that are kept.

The clusters that are up, or on their way, take the first ones; each missing cluster is for the next lot of `max_inputs`.
"""

from __future__ import annotations

from phalanx.model.work import Input
from phalanx.server.pool import Pool


def lots(pool: Pool, inputs: dict[str, Input], now_ms: int, size: int, served: int, most: int) -> list[list[Input]]:
    """Of at most `most` missing clusters, in the order of the queue. `served`: inputs that other clusters have places for."""
    ready = pool.ready(inputs, now_ms, most=served + most * size)
    if served:      # what a cluster was started for is its own, also behind a retry that came back to the front of the queue
        meant = {gang.assignment.input_id for gang in pool.counted() if not gang.took_inputs}
        ready.sort(key=lambda item: item.input_id not in meant)
    return [ready[at : at + size] for at in range(served, len(ready), size)]
