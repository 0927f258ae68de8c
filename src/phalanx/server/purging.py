"""What is old goes: kept answers after some minutes; after a week decided calls, ended clusters, stopped apps, and blobs nobody names.

In small units, so that no request waits behind thousands of rows, and never while `phalanx backup` copies: rows that it has
copied may name what would go.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from phalanx.model.app import App, AppVersion, Class
from phalanx.model.cluster import Assignment, Attempt, Member
from phalanx.model.failed_starts import CrashedStarts
from phalanx.model.kept import KeptAnswer
from phalanx.model.work import Call, CallState, Function, Input, InputState
from phalanx.server.blob_purging import BlobPurging
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.purging")

EVERY_MS = 10 * 60_000
ANSWERS_EVERY_MS = 60_000
KEEP_ANSWERS_MS = 10 * 60_000       # longer than any client that is there retries; counted from the server's own return
MOST_CALLS = 500                    # in one unit, and it ends with the call that makes it more than so many rows:
MOST_ROWS = 2_000


class Purging:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._began_ms = server.now_ms()
        self.keep_ms = server.config.result_retention_s * 1000
        self._blobs = BlobPurging(server)

    def start(self) -> None:
        self._server.clock.call_after(EVERY_MS, self._turn)
        self._server.clock.call_after(ANSWERS_EVERY_MS, self._answers_turn)

    def _answers_turn(self) -> None:
        self._server.act(self._forget_answers)
        self._server.clock.call_after(ANSWERS_EVERY_MS, self._answers_turn)

    def _turn(self) -> None:
        self._server.must_succeed(asyncio.ensure_future(self.purge()))
        self._server.clock.call_after(EVERY_MS, self._turn)

    async def purge(self) -> None:
        """Delete what nobody will ask for any more; at the next turn, while a backup is made."""
        with self._no_backup() as may:
            if not may:
                return
            try:
                await self._server.act(self._apps)
                await self._server.act(self._secrets)
                while self._is_more():
                    await self._server.act(self._calls)
                await self._server.act(self._clusters)
                await self._blobs.sweep(self.keep_ms)
            except Exception:       # a unit that failed half-way has ended the process before; without its changes, old things only stay
                LOG.exception("what is old could not be removed")

    @contextmanager
    def _no_backup(self) -> Iterator[bool]:
        """False while a backup is made; none begins before the end of this."""
        with self._server.paths.backup_lock.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _forget_answers(self, unit: Unit) -> None:
        """Rows are in the order of their time: the loop ends at the first young one."""
        before = self._server.now_ms() - KEEP_ANSWERS_MS
        if self._began_ms > before:
            return
        old = []
        for kept in self._server.world[KeptAnswer].values():
            if kept.created_ms >= before:
                break
            old.append(kept)
        for kept in old:
            unit.delete(kept)
        gangs = self._server.gangs
        self._server.input_requests.forget(lambda task: task not in gangs.by_task or gangs.by_task[task].assignment not in gangs.running)
        self._server.containers.forget()
        self._server.logs.forget_ranks()

    # ------------------------------------------------------------ apps

    def _apps(self, unit: Unit) -> None:
        """Those that stopped long ago, without their calls and clusters, which go by themselves."""
        world, before = self._server.world, self._server.now_ms() - self.keep_ms
        stopped = {app.app_id for app in world[App].values() if app.drained and 0 < app.stopped_ms < before}
        old = stopped - {gang.assignment.app_id for gang in self._server.gangs.running.values()}     # a node may still have to clean up
        kinds = (AppVersion, Class, Function, CrashedStarts) if old else ()
        doomed = [one for kind in kinds for one in world[kind].values() if one.app_id in old]
        for record in doomed:
            unit.delete(record)
        for app_id in old:
            self._server.logs.forget(unit, app_id)
            unit.delete(world[App][app_id])

    def _secrets(self, unit: Unit) -> None:
        """Those that no function names now that old apps are gone."""
        for secret in self._server.secrets.unused(self._server.now_ms() - self.keep_ms):
            unit.delete(secret)

    # ------------------------------------------------------------ calls

    def _is_more(self) -> bool:
        return next(self._old_calls(), None) is not None

    def _old_calls(self) -> Iterator[Call]:
        before, apps = self._server.now_ms() - self.keep_ms, self._server.world[App]
        return (call for call in self._server.world[Call].values() if call.app_id not in apps or self._is_old(call, before))

    def _is_old(self, call: Call, before_ms: int) -> bool:
        """Decided that long ago: a deployed app lives for months, and its calls do not.

        A map that takes inputs still, of which all are decided, is over too when nothing came for so long: its client is gone.
        """
        if call.created_ms >= before_ms or call.num_outputs < call.num_inputs:
            return False
        outputs = self._server.calls.outputs_after(call.call_id, call.num_outputs - 1)
        if call.state != CallState.DONE:
            inputs = self._server.calls.inputs_of(call.call_id)
            if any(item.state != InputState.DONE for item in inputs) or (inputs and inputs[-1].created_ms >= before_ms):
                return False
        return all(output.created_s * 1000 < before_ms for output in outputs)

    def _calls(self, unit: Unit) -> None:
        """The next few old calls, whole."""
        rows, gone = 0, set()
        for call in list(islice(self._old_calls(), MOST_CALLS)):
            doomed = list(self._records_of(call))
            for record in doomed:
                unit.delete(record)
            unit.delete(call)
            gone.add(call.call_id)
            rows += len(doomed)
            if rows > MOST_ROWS:
                break
        self._server.calls.forget(gone)

    def _records_of(self, call: Call) -> Iterator[Any]:
        world, calls = self._server.world, self._server.calls
        running = self._server.gangs.running        # a living cluster still counts by its attempts: they go with it
        for item in calls.inputs_of(call.call_id):
            yield item
            attempts = (world[Attempt].get((item.input_id, number)) for number in range(1, item.attempt + 1))
            yield from (attempt for attempt in attempts if attempt is not None and attempt.assignment not in running)
        yield from calls.outputs_after(call.call_id, 0)
        yield from calls.chunks_after(call.call_id, 0)

    # ------------------------------------------------------------ clusters

    def _clusters(self, unit: Unit) -> None:
        """Ended ones whose log is gone, and attempts that outlived their input."""
        world, before = self._server.world, self._server.now_ms() - self.keep_ms
        apps, running = world[App], self._server.gangs.running
        over = (a for a in world[Assignment].values() if a.assignment not in running)
        ended = {a.assignment for a in over if a.app_id not in apps or (0 < a.ended_ms < before and not self._wrote(a))}
        latest: dict[int, int] = {}     # a living cluster counts on from the highest position
        for one in world[Attempt].values():
            latest[one.assignment] = max(one.position, latest.get(one.assignment, 0))
        doomed: list[Any] = [
            one for one in world[Attempt].values()
            if one.input_id not in world[Input] and (one.assignment not in running or one.position < latest[one.assignment])
        ]  # fmt: skip
        if ended:
            doomed += [one for kind in (Assignment, Member) for one in world[kind].values() if one.assignment in ended]
        for record in doomed:
            unit.delete(record)
        self._server.gangs.forget()

    def _wrote(self, assignment: Assignment) -> bool:
        """A log of it is left: who reads that asks for the cluster and its ranks."""
        index = self._server.logs.index
        return any(index.last((assignment.assignment, rank, assignment.app_id)) for rank in range(assignment.size))


