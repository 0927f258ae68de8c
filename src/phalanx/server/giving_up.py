"""Warm clusters have the lowest priority: idle ones are given up to calls that wait for their nodes, and no more of them than it takes."""

from __future__ import annotations

from dataclasses import replace

from phalanx.model.fleet import Hold
from phalanx.model.plan import Plan, Snapshot
from phalanx.scheduler.plan import plan


def given_up(snapshot: Snapshot, decided: Plan) -> list[str]:
    """Holders to let go so that the first waiting request starts that can be helped so. A what-if of the same `plan`.

    Idle longest goes first; then each that turns out not to be needed stays. Holders that are ending already count as gone:
    while the request only has to wait for them, nothing more is given up.
    """
    idle = sorted((hold for hold in snapshot.holds if hold.warm and not hold.ending), key=lambda hold: (hold.since_ms, hold.holder_id))
    if not idle:
        return []
    requests = {request.request_id: request for request in snapshot.pending}
    for wait in decided.waits:
        request = requests[wait.request_id]
        if request.warm or request.not_before_ms > snapshot.now_ms:
            continue
        gone = [hold for hold in snapshot.holds if hold.ending]
        if _starts(snapshot, request.request_id, gone):
            return []
        for hold in idle:
            gone.append(hold)
            if _starts(snapshot, request.request_id, gone):
                return _needed(snapshot, request.request_id, gone)
    return []


def _needed(snapshot: Snapshot, request_id: str, gone: list[Hold]) -> list[str]:
    for hold in [hold for hold in gone if not hold.ending]:
        fewer = [other for other in gone if other is not hold]
        if _starts(snapshot, request_id, fewer):
            gone = fewer
    return [hold.holder_id for hold in gone if not hold.ending]


def _starts(snapshot: Snapshot, request_id: str, gone: list[Hold]) -> bool:
    holds = tuple(hold for hold in snapshot.holds if hold not in gone)
    return any(start.request_id == request_id for start in plan(replace(snapshot, holds=holds)).starts)
