"""What functions want of the fleet: for each pool the clusters that are missing, as requests, and those it has too many of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from phalanx.core.gang import Gang
from phalanx.model.app import App
from phalanx.model.cluster import MemberState, Phase
from phalanx.model.node import NodeRecord
from phalanx.model.plan import Request
from phalanx.model.work import Function, Input
from phalanx.scheduler import autoscale
from phalanx.scheduler.autoscale import Wanted
from phalanx.scheduler.predict import Durations
from phalanx.server.exclusions import excluded_for
from phalanx.server.gangs import STOPPED_APP_STATES
from phalanx.server.patience import of_input
from phalanx.server.pool import Pool
from phalanx.server.snapshot import request_of

if TYPE_CHECKING:
    from phalanx.server.server import Server

MOST_REQUESTS = 64       # of one function in one plan: a map of 100,000 inputs need not ask for all its containers at once
STARTS_PER_CORE = 2      # containers of plain functions that start at once: a start is 0.4 s of one core (protocol.md), and more of them
                         # at once only make each slower, while those that run already take the inputs

BEFORE_RUNNING = (MemberState.PREPARING, MemberState.PREPARED, MemberState.STARTING, MemberState.HELLO, MemberState.IMPORTING)


@dataclass
class Demand:
    """Of the whole fleet at one moment."""

    room_to_start: int = 0                                  # more containers of plain functions that may start now
    requests: dict[str, Request] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)    # request id -> the input that needs its cluster first; none for warm ones
    surplus: list[int] = field(default_factory=list)        # assignments that are needed no more
    next_look_ms: int | None = None                         # when an idle cluster's window ends, if nothing else happens


def demand(server: Server, durations: Durations) -> Demand:
    """Every pool's wish, from its inputs, its settings and what it has."""
    made = Demand(room_to_start=_room_to_start(server))
    for function_id, pool in server.gangs.pools.items():
        function = server.world[Function].get(function_id)
        app = server.world[App].get(function.app_id) if function is not None else None
        if function is not None and app is not None and app.state not in STOPPED_APP_STATES:
            _of_pool(server, function, pool, durations, made)
    return made


def _of_pool(server: Server, function: Function, pool: Pool, durations: Durations, made: Demand) -> None:
    now = server.now_ms()
    settings = settings_of(function)
    members = {gang.assignment.cluster_id: (gang, _member(gang)) for gang in pool.counted()}
    wish = autoscale.wanted(settings, [member for _, member in members.values()], pool.count_ready(now), now)
    made.surplus += [members[cluster_id][0].assignment.assignment for cluster_id in (*wish.end, *wish.withdraw)]
    look = autoscale.next_look_ms(settings, [member for _, member in members.values()])
    if look is not None and look > now:
        made.next_look_ms = min(look, made.next_look_ms or look)
    ready = pool.ready(server.world[Input], now, most=min(wish.gangs, MOST_REQUESTS) * max(function.max_inputs, 1))
    for request, item in _requests(server, function, pool, ready, wish, durations, now):
        if not function.clustered:
            if made.room_to_start <= 0:
                return      # the next that runs makes the planner look again
            made.room_to_start -= 1
        if item is not None:
            request = of_input(server, function, request, item)
            made.inputs[request.request_id] = item.input_id
        made.requests[request.request_id] = request


def _room_to_start(server: Server) -> int:
    """By the cores of the machines: the nodes of one agent share theirs."""
    cores: dict[str, int] = {}
    for node in server.world[NodeRecord].values():
        if server.agents.is_connected(node.node_id):
            cores[node.agent_id] = max(cores.get(node.agent_id, 0), node.cpu_milli)
    starting = sum(
        any(m.state in BEFORE_RUNNING for m in gang.members) for gang in server.gangs.running.values() if not gang.assignment.clustered
    )
    return max(STARTS_PER_CORE * sum(cores.values()) // 1000, 1) - starting


def _requests(
    server: Server, function: Function, pool: Pool, ready: list[Input], wish: Wanted, durations: Durations, now: int
) -> list[tuple[Request, Input | None]]:
    """One for each cluster that is missing; the n-th has the queue time of the input that needs it first."""
    requests = []
    for n in range(min(wish.gangs, MOST_REQUESTS)):
        warm = n >= wish.gangs - wish.warm
        at = n * max(function.max_inputs, 1)
        item = ready[min(at, len(ready) - 1)] if ready and not warm else None
        excluded = excluded_for(server, function, item)
        request = request_of(function, f"{function.function_id}/{n}", item.created_ms if item else now, pool, warm, now, excluded)
        predicted = durations.predict(function.function_id, function.timeout_s * 1000, family_of(function))
        requests.append((replace(request, predicted_ms=predicted, attempt=item.attempt + 1 if item else 1), item))
    return requests


def settings_of(function: Function) -> autoscale.Pool:
    return autoscale.Pool(
        function.function_id, max(function.size, 1), function.min_nodes if function.published else 0, function.max_nodes or None,
        function.buffer_nodes, function.scaledown_s * 1000, max(function.max_inputs, 1),
    )  # fmt: skip


def family_of(function: Function) -> str:
    """Functions of one name and size in other apps and earlier deploys are the same kind of work."""
    return f"{function.name}/{function.size}"


def _member(gang: Gang) -> autoscale.Member:
    idle = gang.assignment.idle_since_ms if gang.assignment.idle_since_ms and not gang.open else None
    started = gang.assignment.phase == Phase.RUNNING
    return autoscale.Member(gang.assignment.cluster_id, len(gang.open), idle if started else None, started)
