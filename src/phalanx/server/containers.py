"""What containers report and wait for: the two barriers, inputs in step, results, failures. By (assignment, rank) of the shim's socket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from phalanx.core import events as ev
from phalanx.core.gang import Gang
from phalanx.model.cluster import Attempt, Cause, Member, MemberState, Phase, RankResult
from phalanx.model.refusal import not_found
from phalanx.model.work import Input
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

FOREVER_S = 3600.0      # a held barrier is looked at again this often, whatever happens


class Containers:
    """The noun `server.containers`. A report that names an assignment which is over changes nothing."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._told: set[tuple[str, str]] = set()      # (task, input) whose cancellation was sent

    def forget(self) -> None:
        """What was told to containers that have ended."""
        gangs = self._server.gangs
        self._told = {(task, i) for task, i in self._told if task in gangs.by_task and gangs.by_task[task].assignment in gangs.running}

    # ------------------------------------------------------------ the two barriers (design rule 2)

    async def hello(self, assignment: int, rank: int) -> None:
        """Held until every rank has said it and reaches its peers; for ever where the gang ends first: the rank is being killed."""
        await self._server.act(lambda unit: self._server.gangs.dispatch(unit, assignment, ev.Hello(rank)))
        while not self._is_past_first_barrier(assignment, rank):
            await self._server.topics.wait(("hello", assignment), FOREVER_S)

    async def cluster_hello(self, assignment: int, rank: int) -> list[Member]:
        """Held until every rank has imported the user's module; then all members, in rank order."""
        await self._server.act(lambda unit: self._server.gangs.dispatch(unit, assignment, ev.ClusterHello(rank)))
        while (gang := self._past_second_barrier(assignment)) is None:
            await self._server.topics.wait(("ready", assignment), FOREVER_S)
        return gang.members

    def _is_past_first_barrier(self, assignment: int, rank: int) -> bool:
        gang = self._server.gangs.running.get(assignment)
        return gang is not None and gang.members[rank].state in (MemberState.IMPORTING, MemberState.READY)

    def _past_second_barrier(self, assignment: int) -> Gang | None:
        gang = self._server.gangs.running.get(assignment)
        if gang is None or gang.assignment.phase != Phase.RUNNING:
            return None
        return gang if all(member.state == MemberState.READY for member in gang.members) else None

    # ------------------------------------------------------------ inputs

    async def next_inputs(
        self, unit: Unit, assignment: int, rank: int, timeout_s: float, most: int = 1, linger_s: float = 0.0
    ) -> list[Attempt]:
        """The next input of this rank, leased in `unit`: the same ones in the same order on every rank. Empty at the time-out.

        A batched function takes up to `most`, and waits up to `linger_s` for them once there is one. Raises MustLeave when there
        will be none.
        """
        self._came_so_far(assignment, rank)
        if not await self._wait_for_inputs(assignment, rank, 1, timeout_s):
            return []
        if most > 1 and linger_s > 0:
            await self._wait_for_inputs(assignment, rank, most, linger_s)
        attempts: list[Attempt] = []
        while len(attempts) < most and (attempt := self._server.gangs.next_for(unit, assignment, rank)) is not None:
            attempts.append(attempt)
        return attempts

    def _came_so_far(self, assignment: int, rank: int) -> None:
        """Its first question says that the container is through import and @enter. Nobody waits for the disk: it asks again."""
        gang = self._server.gangs.running.get(assignment)
        if gang is not None and gang.is_beginning(rank):
            self._server.act(lambda unit: self._server.gangs.dispatch(unit, assignment, ev.AsksForInputs(rank)))

    async def _wait_for_inputs(self, assignment: int, rank: int, count: int, timeout_s: float) -> bool:
        """Are there so many for this rank, now or before the time-out?"""
        ends = time.monotonic() + timeout_s
        while True:
            gang = self._server.gangs.running.get(assignment)
            if gang is None or gang.must_leave(rank):
                raise MustLeave
            if self._server.gangs.available(gang, rank) >= count:
                return True
            left = ends - time.monotonic()
            if left <= 0:
                return False
            await self._server.topics.wait(("gang", assignment), left)

    async def cancelled_inputs(self, task_id: str, assignment: int, rank: int, timeout_s: float) -> list[str]:
        """Inputs this rank runs whose calls were cancelled, each told once: a second cancellation would hit the first one's clean-up."""
        ends = time.monotonic() + timeout_s
        while True:
            gang = self._server.gangs.running.get(assignment)
            fresh = [i for i in gang.cancelled_on(rank) if (task_id, i) not in self._told] if gang else []
            left = ends - time.monotonic()
            if fresh or left <= 0:
                self._told.update((task_id, input_id) for input_id in fresh)
                return fresh
            await self._server.topics.wait(("cancel", task_id), left)

    # ------------------------------------------------------------ reports

    def put(self, unit: Unit, assignment: int, rank: int, input_id: str, attempt: int, result: RankResult) -> None:
        """A rank is done with an input."""
        self._server.gangs.dispatch(unit, assignment, ev.Put(rank, input_id, attempt, result))

    def failed(self, unit: Unit, assignment: int, rank: int, result: bytes, sentence: str) -> None:
        """The user's module, or @enter, raised."""
        self._server.gangs.dispatch(unit, assignment, ev.TaskFailed(rank, result, sentence))

    def open_attempts(self, assignment: int, rank: int) -> list[Attempt]:
        """What a rank works on: fetched and not put yet, in the order of delivery."""
        gang = self._server.gangs.running.get(assignment)
        return [a for a in gang.open if rank in a.fetched and rank not in a.results] if gang else []

    def generates(self, assignment: int, rank: int, input_or_call_id: str) -> str:
        """The call whose data this rank may add to, or "": rank 0 speaks for its cluster, about what it works on; all else is dropped."""
        if rank != 0:
            return ""
        inputs = self._server.world[Input]
        calls = {a.input_id: inputs[a.input_id].call_id for a in self.open_attempts(assignment, rank)}
        return calls.get(input_or_call_id) or (input_or_call_id if input_or_call_id in calls.values() else "")

    def stop(self, unit: Unit, task_id: str, graceful: bool) -> None:
        """A container's stop stops its whole cluster: members never go alone."""
        member = self._server.gangs.by_task.get(task_id)
        if member is None or member.assignment not in self._server.gangs.running:
            raise not_found("container", task_id, "It may have ended: see `modal container list`")
        stop = ev.StopAsked(Cause.STOPPED, "the container was stopped by `modal container stop`", graceful=graceful)
        self._server.gangs.dispatch(unit, member.assignment, stop)


class MustLeave(Exception):
    """No more inputs for this rank: it gets the kill switch."""
