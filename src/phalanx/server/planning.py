"""The planning loop: demand, snapshot, plan, guarded apply, and the reasons of what waits."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from phalanx.core import events as ev
from phalanx.model.cluster import Cause
from phalanx.model.fleet import Node, Retention
from phalanx.model.gpus import GpuChoice, accepted_types
from phalanx.model.plan import Plan, Policy, Request, Reservation, Snapshot, Start, Stream
from phalanx.model.reasons import Reason, sentence
from phalanx.model.work import Function, Input
from phalanx.scheduler.backoff import Refusals
from phalanx.scheduler.explain import Explanation, explain
from phalanx.scheduler.fit import can_ever_fit
from phalanx.scheduler.plan import plan
from phalanx.scheduler.predict import Durations, RecentWaits
from phalanx.scheduler.record import Recording, Ring, with_fleet
from phalanx.server.demand import Demands
from phalanx.server.fleet import Fleet
from phalanx.server.patience import next_look_ms, waited_too_long
from phalanx.server.preempting import make_room
from phalanx.server.quotas import quotas_of
from phalanx.server.retentions import request_ids
from phalanx.server.snapshot import family_of, request_of
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.planning")

BUSY_S = 0.01       # a plan that took longer than this is not made at every turn: what comes meanwhile goes into the next together
SHARE = 5           # and then planning takes at most every fifth moment of the loop


class Planning:
    """Runs the planner when something changed, once a turn of the event loop however much did."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._scheduled = False
        self._look: Any = None                      # the timer of the next look
        self._look_ms = 0
        self._debug = server.config.extra.get("recount", "") == "yes"
        self._policy = Policy(grace_ms=server.config.grace_ms, debug=self._debug)
        self._never: tuple[tuple[Node, ...], dict[object, str]] = ((), {})     # what these nodes can never run, by kind of request
        self._rests_until = 0.0                     # by the loop's clock, after a turn that took long
        self._reservations: tuple[Reservation, ...] = ()
        self._quotas = quotas_of(server.config.quotas)
        self._retentions: tuple[Retention, ...] = ()
        self._streams: tuple[Stream, ...] = ()
        self._recent = RecentWaits()
        self._said: dict[str, str] = {}             # function id -> the sentence its users saw last
        self.durations = Durations()
        self.fleet = Fleet(server, self.durations)
        self._demands = Demands(server, self.fleet, self.durations)
        self.refusals = Refusals()
        self.ring = Ring()                          # the last decisions, for `phalanx plan --replay`
        self.waits: dict[str, Reason] = {}          # request id -> why it waits, as of the last plan
        self.requests: dict[str, Request] = {}      # of the last plan
        self.inputs: dict[str, str] = {}            # request id -> the first input it is for, as of the last plan; none for warm ones

    def load(self) -> None:
        """After the queues and gangs are there."""
        self._demands.load()

    def soon(self) -> None:
        """Plan at the next turn of the event loop; later after a plan that took long, so that the rest of the server goes on."""
        if self._scheduled:
            return
        self._scheduled = True
        loop = asyncio.get_running_loop()
        if loop.time() >= self._rests_until:
            loop.call_soon(self._turn)
        else:
            loop.call_at(self._rests_until, self._turn)

    def soon_after(self, at_ms: int) -> Any:
        """Plan when that moment is over, although nothing happens then. Returns the timer."""
        return self._server.clock.call_after(at_ms - self._server.now_ms() + 1, self.soon)

    def never_fits(self, function: Function) -> str:
        """Why this fleet can never run the function, or an empty string; with no node registered yet nobody knows."""
        nodes, request = self.fleet.facts(), request_of(function, "", 0)
        if not nodes:
            return ""
        if self._never[0] is not nodes:
            self._never = (nodes, {})
        kind = (request.size, request.ask, request.where, request.rdma, request.fabric_size)
        if kind not in self._never[1]:
            reason = can_ever_fit(request, nodes)
            self._never[1][kind] = sentence(reason) if reason else ""
        return self._never[1][kind]

    def waiting(self) -> list[tuple[Request, Reason]]:
        """What waits now, in the order of the queue, with its reason."""
        return [(self.requests[request_id], reason) for request_id, reason in self.waits.items()]

    def call_of(self, request_id: str) -> str:
        """The call that a request is for first; empty for a warm pool's."""
        item = self._server.world[Input].get(self.inputs.get(request_id, ""))
        return item.call_id if item is not None else ""

    def explain(self, function_id: str, call_id: str = "") -> Explanation | None:
        """Why the first waiting request of a function, or of one call of it, waits, in full; None when none does."""
        request_id = next((r for r in self.waits if self.requests[r].function_id == function_id and call_id in ("", self.call_of(r))), None)
        if request_id is None:
            return None
        index = self.fleet.current(tuple(self._server.gangs.touched), self.refusals.aside(self._server.now_ms()))
        snapshot = self._snapshot(tuple(self.requests.values()))
        made = plan(snapshot, self._policy, index)
        return explain(with_fleet(Recording(snapshot, self._policy, made), index).snapshot, made, request_id)

    def ran(self, function: Function, duration_ms: int) -> None:
        """An input ended by itself after this long: what the next is expected to take."""
        self.durations.seen(function.function_id, duration_ms, family_of(function))
        self._server.gangs.touched.update(self.fleet.like(function))

    # ------------------------------------------------------------ one turn

    def _turn(self) -> None:
        self._scheduled = False
        began = time.perf_counter()
        try:
            self._server.act(self._plan)
        except Exception:
            LOG.exception("planning failed")     # nobody else hears of it: the loop called us
            raise
        took_s = time.perf_counter() - began
        self._rests_until = asyncio.get_running_loop().time() + took_s * (SHARE - 1) if took_s >= BUSY_S else 0.0

    def _plan(self, unit: Unit) -> None:
        touched = set(self._server.gangs.touched)
        self._server.gangs.touched.clear()
        wanted = self._demands.current(touched)
        if self._debug:
            self._demands.recount()
        for number in wanted.surplus:
            self._server.gangs.dispatch(unit, number, ev.StopAsked(Cause.IDLE, "scaled down", graceful=True))
        index = self.fleet.current(touched, self.refusals.aside(self._server.now_ms()))
        if self._debug:
            self.fleet.recount()
        self.requests = wanted.requests
        self.inputs = first = {request_id: lot[0] for request_id, lot in wanted.inputs.items()}
        self._retentions = self._server.retentions.current(unit, request_ids(self._server, wanted.inputs))
        self._streams = wanted.streams
        if not wanted.requests:
            self._look_again(wanted.next_look_ms)
            self._server.giving_way.planned((), {})
            self.waits, self._reservations = {}, ()
            self._tell()
            return
        snapshot = self._snapshot(tuple(wanted.requests.values()))
        decided = plan(snapshot, self._policy, index)
        self.ring.add(snapshot, self._policy, decided, index)
        self._reservations = decided.reserve
        self.waits = {wait.request_id: wait.reason for wait in decided.waits}
        self._look_again(next_look_ms(snapshot, decided, wanted.next_look_ms, self.fleet.protected.values()))
        self._server.giving_way.planned(decided.give_way, first)
        oldest = self._oldest_waiting() if decided.starts else {}
        for start in decided.starts:
            self._start(unit, start, first.get(start.request_id, ""), oldest)
        if decided.starts:
            unit.after(self.soon)   # what waits is told who holds its nodes: clusters, which have names only now
            return
        make_room(self._server, unit, decided, wanted.requests, first)
        self._give_up_waiting(unit, decided, first)
        self._tell()

    def _oldest_waiting(self) -> dict[int, int]:
        """Priority -> when the first call of it came that does not start now."""
        oldest: dict[int, int] = {}
        for request in (self.requests[request_id] for request_id in self.waits):
            if not request.warm:
                oldest[request.priority] = min(request.submitted_ms, oldest.get(request.priority, request.submitted_ms))
        return oldest

    def _start(self, unit: Unit, start: Start, input_id: str, oldest: dict[int, int]) -> None:
        self._server.retentions.started(unit, input_id)
        request = self.requests[start.request_id]
        function = self._server.world[Function][request.function_id]
        if not request.warm:
            self._recent.started(max(0, self._server.now_ms() - request.submitted_ms))
        out_of_turn = any(came < request.submitted_ms for priority, came in oldest.items() if priority >= request.priority)
        self._server.gangs.begin(unit, function, start, _choice(function, start), self._server.world[Input].get(input_id), out_of_turn)

    def _give_up_waiting(self, unit: Unit, decided: Plan, inputs: dict[str, str]) -> None:
        """Calls past their queue deadline fail with what they wait for. Warm clusters that nobody calls wait on."""
        for request_id in decided.expired:
            item = self._server.world[Input].get(inputs.get(request_id, ""))
            if item is None:
                continue
            waited_ms = self._server.now_ms() - (item.queued_ms or item.created_ms)
            failure = waited_too_long(self.waits[request_id], waited_ms)
            self._server.calls.waited_too_long(unit, item, failure)

    def _look_again(self, at_ms: int | None) -> None:
        """When an idle cluster's window ends, or what waits may be decided anew, nothing happens by itself."""
        if at_ms == self._look_ms:
            return
        if self._look is not None:
            self._look.cancel()
        self._look = self.soon_after(at_ms) if at_ms is not None else None
        self._look_ms = at_ms or 0

    # ------------------------------------------------------------ what the planner sees

    def _snapshot(self, pending: tuple[Request, ...]) -> Snapshot:
        """Nodes and holds are in the index."""
        return Snapshot(
            self._server.now_ms(), pending=pending, reservations=self._reservations, retentions=self._retentions, quotas=self._quotas,
            streams=self._streams, recent_wait_ms=self._recent.mean_ms,
        )  # fmt: skip

    # ------------------------------------------------------------ what users see

    def _tell(self) -> None:
        """Show each function's users why it waits, when the sentence changed; and when it waits no more, that too."""
        now: dict[str, str] = {}
        for position, (request_id, reason) in enumerate(self.waits.items()):
            request = self.requests[request_id]
            if request.warm or request.function_id in now:
                continue
            now[request.function_id] = sentence(reason)
            if self._said.get(request.function_id) != now[request.function_id]:
                function = self._server.world[Function][request.function_id]
                self._server.logs.progress(function.app_id, function.function_id, len(self.waits), position, now[request.function_id])
        for function_id in self._said.keys() - now.keys():
            self._server.logs.waits_no_more(function_id)
        self._said = now


def _choice(function: Function, start: Start) -> int:
    """Which of the function's GPU preferences the planner took."""
    for at, (kind, count, exact) in enumerate(function.gpus):
        choice = GpuChoice(str(kind), int(str(count)), bool(exact))
        types = accepted_types(choice)
        if choice.count == start.gpu_count and (start.gpu_type in types or types == ("any",)):
            return at
    return 0
