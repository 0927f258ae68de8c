"""Carries out the planner's evictions: whole clusters are stopped for a call that goes before them, and it gets their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from phalanx.core import events as ev
from phalanx.core.gang import Gang
from phalanx.model.cluster import Cause
from phalanx.model.plan import Plan, Request
from phalanx.model.work import Function, Input
from phalanx.scheduler.backoff import requeue_at_ms
from phalanx.server.snapshot import is_spent
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

STOPPED_ENOUGH = 3      # an input that was stopped so often for others is left alone: it would never end


def make_room(server: Server, unit: Unit, decided: Plan, requests: Mapping[str, Request], inputs: Mapping[str, str]) -> None:
    """Stop the victims of a plan. `inputs`: request id -> the input it is for.

    Idle clusters are let go; those that work are interrupted, all ranks at once, and their inputs keep their place in the queue. What
    was done is in the store with the stop itself: after a restart nobody is stopped for the same call a second time.
    """
    gangs = server.gangs.running
    for request_id, evicts in groupby(decided.evict, key=lambda evict: evict.for_request):
        victims = [gangs[server.planning.fleet.assignments[evict.holder_id]] for evict in evicts]
        item: Input = server.world[Input][inputs[request_id]]
        sentence = _sentence(server, requests[request_id])
        if any(not is_idle(server, gang) for gang in victims):
            item.evictions += 1
            unit.put(item)
        server.retentions.for_victims(unit, item, {g.assignment.cluster_id: [m.node_id for m in g.members] for g in victims})
        for gang in victims:
            _stop(server, unit, gang, sentence)


def is_idle(server: Server, gang: Gang) -> bool:
    """A warm cluster that nobody uses, and that no input of its function waits for."""
    running = gang.assignment.running_ms > 0 and gang.is_counted and not is_spent(gang, server.world[Function][gang.assignment.function_id])
    return running and not gang.open and not server.gangs.pool(gang.assignment.function_id).waiting


def preemptible_after_ms(server: Server, gang: Gang) -> int | None:
    """From when a cluster may be stopped for others; None: not again. The more often its input was, the longer it is left to run."""
    inputs = server.world[Input]
    ids = [attempt.input_id for attempt in gang.open] if gang.took_inputs else [gang.assignment.input_id]
    times = max((inputs[input_id].preemptions for input_id in ids if input_id in inputs), default=0)
    return requeue_at_ms(gang.assignment.created_ms, times) if times < STOPPED_ENOUGH else None


def _stop(server: Server, unit: Unit, gang: Gang, sentence: str) -> None:
    number = gang.assignment.assignment
    if is_idle(server, gang):
        server.gangs.dispatch(unit, number, ev.StopAsked(Cause.IDLE, "given up to a waiting call", graceful=True))
        return
    for attempt in gang.open:
        item: Input = server.world[Input][attempt.input_id]
        item.preemptions += 1
        unit.put(item)
        server.planning.fleet.gangs_changed(item.function_id)       # another that starts for it is left alone as long, too
    server.gangs.dispatch(unit, number, ev.StopAsked(Cause.PREEMPTED, sentence))


def _sentence(server: Server, request: Request) -> str:
    function = server.world[Function].get(request.function_id)
    name = function.name if function is not None else request.function_id
    return f"preempted: its nodes are wanted by {name}, of priority {request.priority}"
