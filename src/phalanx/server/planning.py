"""The planning loop: snapshot, plan, guarded apply, and the reasons of what waits."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.core import events as ev
from phalanx.core.gang import Gang
from phalanx.model.app import App
from phalanx.model.cluster import Cause, Phase
from phalanx.model.fleet import Hold
from phalanx.model.gpus import GpuChoice, accepted_types
from phalanx.model.node import NodeRecord
from phalanx.model.plan import Request, Snapshot, Start
from phalanx.model.reasons import Reason, sentence
from phalanx.model.work import Function, Input
from phalanx.scheduler.fit import can_ever_fit
from phalanx.scheduler.plan import plan
from phalanx.server.gangs import STOPPED_APP_STATES
from phalanx.server.giving_up import given_up
from phalanx.server.pool import Pool, wanted_clusters
from phalanx.server.snapshot import hold_of, node_of, request_of
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.planning")

MOST_REQUESTS = 64   # of one function in one plan: a map of 100,000 inputs need not ask for all its containers at once


class Planning:
    """Runs the planner when something changed, once a turn of the event loop however much did."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._scheduled = False
        self.waits: dict[str, Reason] = {}          # request id -> why it waits, as of the last plan
        self.requests: dict[str, Request] = {}      # of the last plan
        self._said: dict[str, str] = {}             # function id -> the sentence its users saw last

    def soon(self) -> None:
        """Plan at the next turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def never_fits(self, function: Function) -> str:
        """Why this fleet can never run the function, or an empty string; with no node registered yet nobody knows."""
        records = self._nodes()
        if not records:
            return ""
        reason = can_ever_fit(request_of(function, "new", 0), [node_of(record, connected=True) for record in records])
        return sentence(reason) if reason else ""

    def is_surplus(self, function: Function) -> bool:
        """Does the function have more clusters than it wants?"""
        pool = self._server.gangs.pool(function.function_id)
        return len(pool.counted()) > self._wanted(function, pool)

    def waiting(self) -> list[tuple[Request, Reason]]:
        """What waits now, in the order of the queue, with its reason."""
        return [(self.requests[request_id], reason) for request_id, reason in self.waits.items()]

    def _turn(self) -> None:
        self._scheduled = False
        self._server.act(self._plan)

    def _plan(self, unit: Unit) -> None:
        server = self._server
        requests = {r.request_id: r for function in self._functions() for r in self._requests(function)}
        self.requests = requests
        if not requests:
            self.waits = {}
            self._tell()
            return
        snapshot = Snapshot(
            server.now_ms(),
            nodes=tuple(node_of(record, server.agents.is_connected(record.node_id)) for record in self._nodes()),
            holds=tuple(self._hold(gang) for gang in server.gangs.running.values()),
            pending=tuple(requests.values()),
        )
        decided = plan(snapshot)
        for start in decided.starts:
            function = server.world[Function][requests[start.request_id].function_id]
            server.gangs.begin(unit, function, start, _choice(function, start))
        self.waits = {wait.request_id: wait.reason for wait in decided.waits}
        if decided.starts:
            unit.after(self.soon)   # what waits is told who holds its nodes: clusters, which have names only now
            return
        idle = {hold.holder_id for hold in snapshot.holds if hold.warm}
        for cluster_id in [e.holder_id for e in decided.evict if e.holder_id in idle] or given_up(snapshot, decided):
            number = next(n for n, gang in server.gangs.running.items() if gang.assignment.cluster_id == cluster_id)
            server.gangs.dispatch(unit, number, ev.StopAsked(Cause.IDLE, "given up to a waiting call", graceful=True))
        self._tell()

    def _hold(self, gang: Gang) -> Hold:
        function = self._server.world[Function][gang.assignment.function_id]
        waiting = self._server.gangs.pool(function.function_id).waiting
        idle = gang.assignment.phase == Phase.RUNNING and not gang.open and not waiting
        return replace(hold_of(gang, function, gang.members), warm=idle, ending=not gang.is_counted)

    def _functions(self) -> list[Function]:
        return [self._server.world[Function][f] for f in self._server.gangs.pools if f in self._server.world[Function]]

    def _nodes(self) -> list[NodeRecord]:
        return [record for record in self._server.world[NodeRecord].values() if not record.removed]

    def _wanted(self, function: Function, pool: Pool) -> int:
        app = self._server.world[App].get(function.app_id)
        runs = app is not None and app.state not in STOPPED_APP_STATES
        ready = pool.ready(self._server.world[Input], self._server.now_ms())
        return wanted_clusters(function, len(ready), sum(len(gang.open) for gang in pool.counted()), runs)

    def _requests(self, function: Function) -> list[Request]:
        """One request for each cluster that is missing; the n-th has the queue time of the input that needs it first."""
        pool = self._server.gangs.pool(function.function_id)
        missing = min(self._wanted(function, pool) - len(pool.counted()), MOST_REQUESTS)
        now = self._server.now_ms()
        ready = pool.ready(self._server.world[Input], now)
        requests = []
        for n in range(max(missing, 0)):
            at = n * max(function.max_inputs, 1)
            submitted = ready[at].created_ms if at < len(ready) else now
            warm = at >= len(ready)
            requests.append(request_of(function, f"{function.function_id}/{n}", submitted, pool, warm, now))
        return requests

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
