"""What functions want of the fleet: for each pool the clusters that are missing, as requests, and those it has too many of.

A pool's wish is worked out again when something of it changed or its time came, and kept otherwise: a turn costs what changed and
what waits, however many functions there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from phalanx.core.gang import Gang
from phalanx.model.app import App
from phalanx.model.cluster import Member, MemberState, Phase
from phalanx.model.plan import Request, Stream
from phalanx.model.work import Function, Input
from phalanx.scheduler import autoscale
from phalanx.scheduler.predict import Durations
from phalanx.server import meant_for
from phalanx.server.exclusions import excluded_for
from phalanx.server.fleet import Fleet
from phalanx.server.gangs import STOPPED_APP_STATES
from phalanx.server.patience import deadline_ms
from phalanx.server.pool import Pool
from phalanx.server.snapshot import family_of, goes_on_with_inputs, is_spent, request_of

if TYPE_CHECKING:
    from phalanx.server.server import Server

MOST_REQUESTS = 64       # of one function in one plan: a map of 100,000 inputs need not ask for all its containers at once
MOST_CANDIDATES = 1024   # in one plan, about: 10 ms. With many functions each has fewer; who is left out is looked at when those started
FEWEST_REQUESTS = 1
STARTS_PER_CORE = 2      # containers of plain functions that start at once: a start is 0.4 s of one core (protocol.md), and more of them
                         # at once only make each slower, while those that run already take the inputs

BEFORE_RUNNING = (MemberState.PREPARING, MemberState.PREPARED, MemberState.STARTING, MemberState.HELLO, MemberState.IMPORTING)


@dataclass
class Demand:
    """Of the whole fleet at one moment."""

    requests: dict[str, Request] = field(default_factory=dict)
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)    # request id -> those it is for, in order; none for warm ones
    surplus: list[int] = field(default_factory=list)        # assignments that are needed no more
    streams: tuple[Stream, ...] = ()                        # functions whose clusters go on with inputs that wait
    next_look_ms: int | None = None                         # when an idle cluster's window ends, if nothing else happens


@dataclass(frozen=True)
class _Wish:
    """One pool's, as long as nothing of it changes."""

    plain: bool
    requests: tuple[Request, ...] = ()
    inputs: tuple[tuple[str, ...], ...] = ()    # that each is for; none for warm ones
    cut: bool = False                   # there are more
    stream: Stream | None = None        # what goes on with its inputs
    look_ms: int | None = None          # when the window of an idle cluster ends
    stale_ms: int | None = None         # when it is another by time alone


class Demands:
    """Keeps every pool's wish. `current()` is the demand as of now."""

    def __init__(self, server: Server, fleet: Fleet, durations: Durations) -> None:
        self._server = server
        self._fleet = fleet
        self._durations = durations
        self._waiting: dict[str, _Wish] = {}        # pools that want something
        self._timed: dict[str, _Wish] = {}          # pools whose wish changes by time alone, or that have idle clusters
        self._streams: dict[str, Stream] = {}
        self._surplus: dict[str, list[int]] = {}
        self._starting: set[int] = set()            # assignments of plain functions that do not run yet
        self._members: set[int] = set()             # assignments of which a member changed
        self._states: dict[str, int] = {}           # of apps
        self._share = MOST_REQUESTS
        server.world.watch(Member, lambda member: self._members.add(member.assignment))
        server.world.watch(App, self._app_changed)
        server.world.watch(Input, lambda item: server.gangs.touched.add(item.function_id))

    def load(self) -> None:
        """After the start of the server: every pool is new."""
        self._members = set(self._server.gangs.running)
        self._server.gangs.touched.update(self._server.gangs.pools)

    def current(self, touched: set[str]) -> Demand:
        """`touched`: functions of which something changed since the last call."""
        now = self._server.now_ms()
        due = {function_id for function_id, wish in self._timed.items() if wish.stale_ms is not None and wish.stale_ms <= now}
        share = self._share_of_each()
        if share != self._share:
            due |= {function_id for function_id, wish in self._waiting.items() if wish.cut or len(wish.requests) > share}
            self._share = share
        for function_id in sorted(touched | due):
            self._look_at(function_id, now)
        return self._gathered(now)

    def recount(self) -> None:
        """Debug mode: AssertionError where a kept wish differs from what the pool wants now."""
        now = self._server.now_ms()
        for function_id, pool in self._server.gangs.pools.items():
            function = self._function(function_id)
            wish = self._wish_of(function, pool, now)[0] if function is not None else _Wish(False)
            kept = self._waiting[function_id].requests if function_id in self._waiting else ()
            assert _timeless(kept) == _timeless(wish.requests), f"{function_id}: kept {kept}, recounted {wish.requests}"
            stream = self._streams.get(function_id)
            assert stream == wish.stream, f"{function_id}: kept {stream}, recounted {wish.stream}"
        starting = {n for n, gang in self._server.gangs.running.items() if _is_starting(gang)}
        assert self._starting == starting, f"starting: kept {self._starting}, recounted {starting}"

    # ------------------------------------------------------------ one pool

    def _app_changed(self, app: App) -> None:
        if app.app_id not in self._server.world[App]:   # purged
            self._states.pop(app.app_id, None)
        elif self._states.get(app.app_id) != app.state:
            self._states[app.app_id] = app.state
            for function_id, pool in self._server.gangs.pools.items():
                function = self._server.world[Function].get(function_id)
                if function is not None and function.app_id == app.app_id:
                    pool.stir()

    def _look_at(self, function_id: str, now: int) -> None:
        self._waiting.pop(function_id, None)
        self._timed.pop(function_id, None)
        self._streams.pop(function_id, None)
        function, pool = self._function(function_id), self._server.gangs.pools.get(function_id)
        if function is None or pool is None:
            return
        wish, surplus = self._wish_of(function, pool, now)
        if surplus:
            self._surplus[function_id] = surplus
        if wish.requests:
            self._waiting[function_id] = wish
        if wish.stream is not None:
            self._streams[function_id] = wish.stream
        if wish.look_ms is not None or wish.stale_ms is not None:
            self._timed[function_id] = wish

    def _function(self, function_id: str) -> Function | None:
        """None when nothing is wanted for it any more."""
        function: Function | None = self._server.world[Function].get(function_id)
        app = self._server.world[App].get(function.app_id) if function is not None else None
        return function if app is not None and app.state not in STOPPED_APP_STATES else None

    def _wish_of(self, function: Function, pool: Pool, now: int) -> tuple[_Wish, list[int]]:
        settings = settings_of(function)
        members = {gang.assignment.cluster_id: (gang, _member(gang)) for gang in pool.counted() if not is_spent(gang, function)}
        wish = autoscale.wanted(settings, [member for _, member in members.values()], pool.count_ready(now), now)
        surplus = [members[cluster_id][0].assignment.assignment for cluster_id in (*wish.end, *wish.withdraw)]
        look = autoscale.next_look_ms(settings, [member for _, member in members.values()])
        most = min(wish.gangs, self._share)
        needed = min(wish.gangs - wish.warm, most)
        lots = meant_for.lots(pool, self._server.world[Input], now, max(function.max_inputs, 1), wish.served, needed) if needed else []
        items = [lot[0] for lot in lots] + [None] * (most - len(lots))
        requests = tuple(self._requests(function, pool, items, now))
        times = [look, *pool.delayed.values(), *pool.refused.values(), pool.not_before_ms, pool.resting_until_ms]
        stale = min((at for at in times if at is not None and at > now), default=None)
        if any(item is not None and item.excluded_nodes for item in items):
            stale = now     # what is left without them changes with every node
        inputs = tuple(tuple(item.input_id for item in lot) for lot in lots)
        going_on = tuple(sorted(cluster_id for cluster_id, (gang, _) in members.items() if goes_on_with_inputs(gang, function)))
        next_input = pool.ready(self._server.world[Input], now, most=1) if going_on else []
        stream = Stream(function.function_id, next_input[0].created_ms, going_on) if next_input else None
        return _Wish(not function.clustered, requests, inputs, wish.gangs > most, stream, look, stale), surplus

    def _requests(self, function: Function, pool: Pool, items: list[Input | None], now: int) -> list[Request]:
        """One for each cluster that is missing, with the queue time of the input that needs it first."""
        if not items:
            return []
        server = self._server
        predicted = self._durations.predict(function.function_id, function.timeout_s * 1000, family_of(function))
        common = replace(request_of(function, "", now, pool, True, now), predicted_ms=predicted)     # made once: with 64 it counts
        requests = []
        for n, item in enumerate(items):
            request_id = f"{function.function_id}/{n}"
            if item is None:
                requests.append(replace(common, request_id=request_id))
                continue
            excluded = common.excluded_nodes | excluded_for(server, function, item)
            requests.append(replace(
                common, request_id=request_id, submitted_ms=item.created_ms, warm=False, attempt=item.attempt + 1, excluded_nodes=excluded,
                evictions=item.evictions, deadline_ms=deadline_ms(server, function, item),
            ))  # fmt: skip
        return requests

    # ------------------------------------------------------------ all together

    def _share_of_each(self) -> int:
        """How many requests of one function a plan looks at: fewer, in powers of two, the more functions wait."""
        functions = max(len(self._waiting), 1)
        share = MOST_REQUESTS
        while share > FEWEST_REQUESTS and share * functions > MOST_CANDIDATES:
            share //= 2
        return share

    def _gathered(self, now: int) -> Demand:
        made = Demand()
        for surplus in self._surplus.values():
            made.surplus += surplus
        self._surplus = {}
        looks = [wish.look_ms for wish in self._timed.values() if wish.look_ms is not None and wish.look_ms > now]
        made.next_look_ms = min(looks, default=None)
        made.streams = tuple(self._streams.values())
        pools = self._server.gangs.pools
        room = self._room_to_start()
        for function_id in sorted(self._waiting, key=lambda name: pools[name].ordinal):
            wish = self._waiting[function_id]
            requests = wish.requests
            if wish.plain:
                requests = requests[: max(room, 0)]     # the next that runs makes the planner look again
                room -= len(requests)
            made.requests.update((request.request_id, request) for request in requests)
            made.inputs.update((request.request_id, lot) for request, lot in zip(requests, wish.inputs, strict=False))
        return made

    def _room_to_start(self) -> int:
        """More containers of plain functions that may start now, by the cores of the machines."""
        for number in self._members:
            gang = self._server.gangs.running.get(number)
            if gang is not None and _is_starting(gang):
                self._starting.add(number)
            else:
                self._starting.discard(number)
        self._members = set()
        return max(STARTS_PER_CORE * self._fleet.cpu_milli() // 1000, 1) - len(self._starting)


def settings_of(function: Function) -> autoscale.Pool:
    return autoscale.Pool(
        function.function_id, max(function.size, 1), function.min_nodes if function.published else 0, function.max_nodes or None,
        function.buffer_nodes, function.scaledown_s * 1000, max(function.max_inputs, 1),
    )  # fmt: skip


def _member(gang: Gang) -> autoscale.Member:
    idle = gang.assignment.idle_since_ms if gang.assignment.idle_since_ms and not gang.open else None
    started = gang.assignment.phase == Phase.RUNNING
    return autoscale.Member(gang.assignment.cluster_id, len(gang.open), idle if started else None, started)


def _is_starting(gang: Gang) -> bool:
    return not gang.assignment.clustered and any(m.state in BEFORE_RUNNING for m in gang.members)


def _timeless(requests: tuple[Request, ...]) -> list[Request]:
    """Warm ones are as old as the wish."""
    return [replace(request, submitted_ms=0) if request.warm else request for request in requests]
