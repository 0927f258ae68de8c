"""Warm clusters have the lowest priority: idle ones are given up to calls that wait for their nodes, and no more of them than it takes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from phalanx.model.fleet import Hold
from phalanx.model.plan import Plan, Request, Snapshot
from phalanx.scheduler.index import FleetIndex, HoldEnded
from phalanx.scheduler.plan import plan

KINDS = 8       # of requests a what-if is made for in one turn; the next turn looks again


def given_up(snapshot: Snapshot, decided: Plan, index: FleetIndex) -> list[str]:
    """Holders to let go so that the first waiting request starts that can be helped so. What-ifs of the same `plan`.

    Idle longest goes first; then each that turns out not to be needed stays. Holders that are ending already count as gone:
    while the request only has to wait for them, nothing more is given up.
    """
    idle = sorted((h for h in index.holds.values() if h.warm and not h.ending), key=lambda hold: (hold.since_ms, hold.holder_id))
    if not idle:
        return []
    requests = {request.request_id: request for request in snapshot.pending}
    tried: set[object] = set()
    for wait in decided.waits:
        request = requests[wait.request_id]
        kind = (request.function_id, request.excluded_nodes)
        if request.warm or request.not_before_ms > snapshot.now_ms or kind in tried:
            continue
        if len(tried) == KINDS:
            break
        tried.add(kind)
        found = _for(request, snapshot, index, idle)
        if found is not None:
            return found
    return []


def _for(request: Request, snapshot: Snapshot, index: FleetIndex, idle: list[Hold]) -> list[str] | None:
    """None: all of them would not help it."""
    promised = {reservation.request_id for reservation in snapshot.reservations}
    pending = tuple(other for other in snapshot.pending if other is request or other.request_id in promised)    # others have had their turn
    alone = replace(snapshot, pending=pending)
    now = index.apply([HoldEnded(hold.holder_id) for hold in index.holds.values() if hold.ending])

    def starts(gone: list[Hold]) -> bool:
        made = plan(alone, index=now.apply([HoldEnded(hold.holder_id) for hold in gone]))
        return any(start.request_id == request.request_id for start in made.starts)

    if not starts(idle):
        return None
    fewest = bisect_left(range(len(idle) + 1), True, key=lambda count: starts(idle[:count]))
    gone = idle[:fewest]
    for hold in list(gone):
        fewer = [other for other in gone if other is not hold]
        if starts(fewer):
            gone = fewer
    return [hold.holder_id for hold in gone]
