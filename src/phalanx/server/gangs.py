"""Gangs: feeds events to the pure machines (core/gang.py), persists what they changed, and carries out what they want.

Every event goes through `dispatch` inside a unit: the machine changes its records, the unit commits them, and only then do
messages go to agents and answers to containers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.core import events as ev
from phalanx.core.gang import Gang, GangPolicy
from phalanx.core.states import move_input
from phalanx.model.app import App
from phalanx.model.cluster import Assignment, Attempt, Cause, Member, Phase
from phalanx.model.node import NodeRecord
from phalanx.model.plan import Start
from phalanx.model.work import Function, Input, InputState
from phalanx.server.failed_starts import FailedStarts
from phalanx.server.gang_policy import policy_of
from phalanx.server.gang_timers import GangTimers
from phalanx.server.pool import Pool
from phalanx.server.quotas import unknown_queue
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

STOPPED_APP_STATES = (4, 5)     # api_pb2 APP_STATE_STOPPING, APP_STATE_STOPPED
_FAILURES = (
    Cause.NODE, Cause.REFUSED, Cause.OOM, Cause.SIGNAL, Cause.EXIT, Cause.TIMEOUT, Cause.EXCEPTION, Cause.COLLECTIVE, Cause.PREEMPTED,
)  # fmt: skip


class Gangs:
    """All assignments that are not over, by number, and each function's pool."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ordinals = itertools.count()
        self._timers = GangTimers(server)
        self.failed_starts = FailedStarts(server)
        self.running: dict[int, Gang] = {}
        self.pools: dict[str, Pool] = {}
        self.by_task: dict[str, Member] = {}
        self.touched: set[str] = set()              # functions whose demand may have changed since the last plan

    def load(self) -> None:
        """Rebuild the machines and queues from the rows, as they were at the last commit."""
        world = self._server.world
        members: dict[int, list[Member]] = {}
        for member in world[Member].values():
            members.setdefault(member.assignment, []).append(member)
            self.by_task[member.task_id] = member
        attempts: dict[int, list[Attempt]] = {}
        for attempt in world[Attempt].values():
            attempts.setdefault(attempt.assignment, []).append(attempt)
        for assignment in world[Assignment].values():
            if assignment.phase != Phase.ENDED:
                number = assignment.assignment
                gang = Gang(assignment, members[number], attempts.get(number, []), self._policy_of(assignment))
                self._track(gang)
                self._timers.arm_again(gang)
        for item in world[Input].values():
            if item.state == InputState.PENDING:
                self.pool(item.function_id).add(item)
                delay_ms = item.not_before_ms - self._server.now_ms()
                if delay_ms > 0:
                    self._server.calls.retrying.look_later(item.function_id, delay_ms + 1)

        self.failed_starts.load()

    def forget(self) -> None:
        """Rows of members and functions are gone."""
        members = self._server.world[Member]
        self.by_task = {task_id: member for task_id, member in self.by_task.items() if (member.assignment, member.rank) in members}
        self.pools = {f: pool for f, pool in self.pools.items() if f in self._server.world[Function]}

    # ------------------------------------------------------------ what others ask

    def pool(self, function_id: str) -> Pool:
        if function_id not in self.pools:
            self.pools[function_id] = Pool(function_id, ordinal=next(self._ordinals), touched=self.touched)
            self.touched.add(function_id)
        return self.pools[function_id]

    def of_app(self, app_id: str) -> list[Gang]:
        return [gang for gang in self.running.values() if gang.assignment.app_id == app_id]

    def app_is_quiet(self, app_id: str) -> bool:
        """Every rank of the app is confirmed gone; agents send the last log line before they say so."""
        return all(gang.all_gone for gang in self.of_app(app_id))

    def authenticate(self, task_id: str, assignment: int, secret: str) -> tuple[str, int, int] | None:
        """Is this the shim of that task? Assignments that are over are not let in."""
        member = self.by_task.get(task_id)
        if member is None or member.assignment != assignment or member.task_secret != secret or assignment not in self.running:
            return None
        return task_id, assignment, member.rank

    # ------------------------------------------------------------ events

    def dispatch(self, unit: Unit, assignment: int, event: ev.Event) -> bool:
        """Give an event to the machine of an assignment. False: it is over or unknown, and nothing changed (fencing)."""
        gang = self.running.get(assignment)
        if gang is None:
            return False
        gone_before = gang.all_gone
        try:
            instructions = gang.handle(event, self._server.now_ms())
        finally:    # what a bug left half-way is in the unit too: it tells whether memory is still what the store has (server.py)
            for record in gang.take_changed():
                unit.put(record)
        ends = gang.all_gone and not gone_before
        if ends:
            self._say_why(unit, gang)       # before what follows from it
        for instruction in instructions:
            self.carry_out(unit, gang, instruction)
        if ends:
            self._ended(unit, gang)
            self._server.retentions.after_loss(unit, gang, [i.input_id for i in instructions if isinstance(i, ev.Requeue)])
        return True

    def begin(
        self, unit: Unit, function: Function, start: Start, gpu_choice: int, item: Input | None, out_of_turn: bool = False
    ) -> Gang:
        """A plan's start, committed: the nodes are held, members named, agents told to prepare. `item`: what it is for; None: a warm pool's
        setting wants one more."""
        server = self._server
        number = server.next_number(unit, "assignment")
        now = server.now_ms()
        policy = policy_of(server.config, function)
        assignment = Assignment(
            number, server.new_id("cu"), function.app_id, function.function_id, function.size, function.clustered,
            gpu_type=start.gpu_type, gpu_choice=gpu_choice, max_inputs=function.max_inputs, created_ms=now,
            timeout_ms=function.timeout_s * 1000, startup_timeout_ms=(function.startup_timeout_s or function.timeout_s) * 1000,
            grace_ms=policy.grace_ms, out_of_turn=out_of_turn,
            input_id=item.input_id if item else "", attempt=item.attempt + 1 if item else 1, last_end=item.last_end if item else "",
        )  # fmt: skip
        members = [
            Member(
                number, rank, server.new_id("ta"), node_id, assignment.cluster_id, function.app_id, function.function_id,
                task_secret=server.secret(), created_ms=now,
            )
            for rank, node_id in enumerate(start.node_ids)
        ]  # fmt: skip
        gang = Gang(assignment, members, [], policy)
        for record in (assignment, *members):
            unit.put(record)
        self._track(gang)
        self.dispatch(unit, number, ev.Placed())
        for member in members:
            server.logs.task_state(function.app_id, function.function_id, member.task_id, "creating")
        return gang

    def available(self, gang: Gang, rank: int) -> int:
        """How many inputs `next_for` would give a rank now, one after the other."""
        offered = gang.offers(rank)
        room = gang.room(rank)
        if room <= 0:
            return offered
        return offered + min(room, self.pool(gang.assignment.function_id).count_ready(self._server.now_ms()))

    def next_for(self, unit: Unit, assignment: int, rank: int) -> Attempt | None:
        """The next input for a rank, marked as fetched: one that the other ranks have, or a new one from the queue."""
        gang = self.running[assignment]
        attempt = gang.offer(rank)
        if attempt is None and gang.room(rank):
            attempt = self._deliver(unit, gang, rank)
        if attempt is not None:
            self.dispatch(unit, assignment, ev.Fetched(rank, attempt.input_id))
        return attempt

    def _deliver(self, unit: Unit, gang: Gang, rank: int) -> Attempt | None:
        pool = self.pool(gang.assignment.function_id)
        item = self._next(gang, pool)
        if item is None or (gang.took_inputs and self._server.giving_way.instead_of(unit, gang, item)):
            return None
        pool.remove(item)
        move_input(item, InputState.RUNNING)
        item.attempt += 1
        item.assignment = gang.assignment.assignment
        item.started_ms = self._server.now_ms()
        unit.put(item)
        self._server.logs.inputs.started(item)
        self.dispatch(unit, gang.assignment.assignment, ev.Delivered(item.input_id, item.attempt))
        self._server.planning.soon()
        return gang.offer(rank)

    def _next(self, gang: Gang, pool: Pool) -> Input | None:
        """In the order of the queue. But what has run before has the cluster that was started for it: that one left out the nodes which
        failed it, and has the number of its attempt in the environment."""
        inputs, now = self._server.world[Input], self._server.now_ms()
        meant = inputs.get(gang.assignment.input_id)
        if meant is not None and meant.attempt and not gang.took_inputs and pool.is_ready(meant, now):
            return meant
        return next(iter(pool.ready(inputs, now, most=1)), None)

    # ------------------------------------------------------------ whole apps and functions

    def stop_app(self, unit: Unit, app_id: str, cause: str, sentence: str) -> None:
        """End all calls and clusters of an app. `server.apps.drained` is called once every rank is gone and its logs are in."""
        for pool in [p for p in self.pools.values() if self._app_of(p.function_id) == app_id]:
            for _, _, input_id in list(pool.waiting):
                self._server.calls.terminate_waiting(unit, self._server.world[Input][input_id], sentence)
        for gang in self.of_app(app_id):
            self.dispatch(unit, gang.assignment.assignment, ev.StopAsked(cause, sentence))
        self._report_quiet(unit, app_id)

    def function_changed(self, unit: Unit, function_id: str) -> None:
        """A function was published, or its autoscaler settings changed: plan again."""
        self.pool(function_id).stir()
        unit.after(self._server.planning.soon)

    def fleet_refuses(self, function: Function) -> str:
        """Why the fleet can never run this function ("can never fit: …"), or an empty string."""
        return unknown_queue(function, self._server.config.quotas) or self._server.planning.never_fits(function)

    # ------------------------------------------------------------ instructions

    def carry_out(self, unit: Unit, gang: Gang, instruction: ev.Instruction) -> None:
        """What a machine wants, once the unit is on disk."""
        server, number = self._server, gang.assignment.assignment
        match instruction:
            case ev.Prepare(rank):
                member = gang.members[rank]
                unit.after(lambda: server.agents.prepare(gang, member))
            case ev.Start(rank) | ev.CheckPeers(rank) | ev.StopRank(rank) | ev.Release(rank):
                member = gang.members[rank]
                unit.after(lambda: server.agents.tell(gang, member, instruction))
            case ev.AnswerHellos():
                unit.after(lambda: server.topics.wake(("hello", number)))
                unit.after(lambda: self._running(gang))
            case ev.AnswerClusterHellos():
                unit.after(lambda: server.topics.wake(("ready", number)))
            case ev.WakeRanks():
                unit.after(lambda: server.topics.wake(("gang", number)))
            case ev.CancelOnRanks(_, ranks):
                for rank in ranks:
                    unit.after(self._waker(("cancel", gang.members[rank].task_id)))
            case ev.Decide():
                server.calls.decide(unit, gang, instruction)
            case ev.Requeue(input_id):
                server.calls.requeue(unit, server.world[Input][input_id], instruction)
            case ev.CameThrough():
                self.failed_starts.came_through(unit, gang)
            case ev.FailWaiting() if self.works_elsewhere(gang):
                pass    # one container of many died early: the others take what waits, and the next start is delayed (failed_starts.py)
            case ev.FailWaiting(failure):
                server.calls.fail_waiting(unit, gang, failure)
            case ev.SetTimer():
                unit.after(lambda: self._timers.arm(number, instruction))
            case ev.BecameIdle():
                unit.after(server.planning.soon)
            case ev.GangOver(dirty):
                self._over(unit, gang, dirty)

    def works_elsewhere(self, gang: Gang) -> bool:
        """Has another cluster of the function come through import and @enter?"""
        others = (other for other in self.pool(gang.assignment.function_id).gangs.values() if other is not gang and other.is_counted)
        return any(all(member.asked for member in other.members) for other in others)

    def _waker(self, topic: tuple[str, str]) -> Callable[[], None]:
        return lambda: self._server.topics.wake(topic)

    def _running(self, gang: Gang) -> None:
        self.failed_starts.started(gang)
        for member in gang.members:
            self._server.logs.task_state(gang.assignment.app_id, gang.assignment.function_id, member.task_id, "active")

    def _ended(self, unit: Unit, gang: Gang) -> None:
        """Every rank is confirmed gone: what its end means for the next start, and an app that was stopped may be done."""
        self.failed_starts.ended(unit, gang)
        self._report_quiet(unit, gang.assignment.app_id)

    def _say_why(self, unit: Unit, gang: Gang) -> None:
        """A cluster's failure in the app's log: the first cause, and a line for each other rank."""
        assignment, verdict = gang.assignment, gang.assignment.verdict
        if verdict is None or not assignment.clustered or verdict.cause not in _FAILURES:
            return
        what = "was preempted" if verdict.cause == Cause.PREEMPTED else "failed"
        why = verdict.sentence.removeprefix("preempted: ")      # said already
        for line in (f"cluster {assignment.cluster_id} {what}: {why}", *(f"  {line}" for line in verdict.others)):
            self._server.logs.system_line(unit, assignment.app_id, assignment.function_id, line, cluster_id=assignment.cluster_id)

    def _over(self, unit: Unit, gang: Gang, dirty: dict[int, str]) -> None:
        for rank, remains in dirty.items():
            node = self._server.world[NodeRecord].get(gang.members[rank].node_id)
            if node is not None and not node.unschedulable:
                node.unschedulable = f"left over from {gang.members[rank].task_id}: {remains}"
                unit.put(node)
        self.running.pop(gang.assignment.assignment, None)
        self.pool(gang.assignment.function_id).gangs.pop(gang.assignment.assignment, None)
        self._server.nodes.left(unit, gang)
        unit.after(self._server.planning.soon)

    def _report_quiet(self, unit: Unit, app_id: str) -> None:
        app = self._server.world[App].get(app_id)
        if app is not None and app.state in STOPPED_APP_STATES and not app.drained and self.app_is_quiet(app_id):
            self._server.apps.drained(unit, app_id)

    def _policy_of(self, assignment: Assignment) -> GangPolicy:
        """After a restart, maybe with other settings: its agents go by the grace that they were told."""
        policy = policy_of(self._server.config, self._server.world[Function].get(assignment.function_id))
        return policy if assignment.grace_ms < 0 else replace(policy, grace_ms=assignment.grace_ms)

    def _app_of(self, function_id: str) -> str:
        function = self._server.world[Function].get(function_id)
        return function.app_id if function else ""

    def _track(self, gang: Gang) -> None:
        self.running[gang.assignment.assignment] = gang
        self.pool(gang.assignment.function_id).gangs[gang.assignment.assignment] = gang
        for member in gang.members:
            self.by_task[member.task_id] = member
