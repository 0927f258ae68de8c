"""How long an input may wait for nodes, and when what waits is looked at again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from phalanx.core import options
from phalanx.model.cluster import Failure
from phalanx.model.plan import Plan, Snapshot
from phalanx.model.reasons import Reason, duration, sentence
from phalanx.model.work import Function, Input

if TYPE_CHECKING:
    from phalanx.server.server import Server

WAITED_TOO_LONG = "queue"       # the cause of such a failure; no cluster of the function is to blame, so it is none of `Cause`

SOONEST_MS = 1_000              # a forecast that moves with the clock is not looked at again at every tick of it


def deadline_ms(server: Server, function: Function, item: Input) -> int | None:
    """When it has waited long enough; None: never. Counted from when it began to wait this time, or from the server's own return."""
    allowed_s = allowed_wait_s(function, server.config.queue_deadline_s)
    if allowed_s is None:
        return None
    since_ms = max(item.queued_ms or item.created_ms, server.returned_ms)
    return since_ms + int(allowed_s * 1000)


def allowed_wait_s(function: Function, fleet_wide_s: float) -> float | None:
    """`experimental_options={"queue_deadline": 600}`, in seconds, is the function's own; 0 or less means without end."""
    try:
        own_s = options.queue_deadline_s(function.options)
    except ValueError:      # of an older release, which did not refuse it
        own_s = None
    seconds = fleet_wide_s if own_s is None else own_s
    return seconds if 0 < seconds < math.inf else None


def next_look_ms(snapshot: Snapshot, decided: Plan, others_ms: int | None, protected_ms: Iterable[int]) -> int | None:
    """When what waits may be decided otherwise although nothing happened: a deadline, an expected start, a victim's time to itself.

    `protected_ms`: when clusters may be stopped for others that were not to be stopped at once.
    """
    waits = {wait.request_id: wait.reason.earliest_start_ms for wait in decided.waits}
    forecasts = (None if at is None else max(at, snapshot.now_ms + SOONEST_MS) for at in waits.values())
    dates = [others_ms, *forecasts, *(r.deadline_ms for r in snapshot.pending if r.request_id in waits)]
    if waits:
        dates += protected_ms
    return min((at for at in dates if at is not None and at > snapshot.now_ms), default=None)


def waited_too_long(reason: Reason, waited_ms: int) -> Failure:
    """What its caller is told: the reason it waited for, and for how long."""
    text = f"gave up after {duration(waited_ms)} in the queue, its deadline: {sentence(reason)}"
    return Failure(WAITED_TOO_LONG, -1, 0, text, user_fault=False)
