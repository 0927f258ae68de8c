"""Gangs in bad weather, without a server: messages between control plane and ranks are lost, said twice, late and out of order, the
control plane starts again from its rows, the clock jumps, ranks die and nodes are lost. Whatever happens, the rules hold and all ends.

A world is its seed: `World(seed).live()`.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from phalanx.core import events as ev
from phalanx.core.budgets import restart_delay_ms
from phalanx.core.gang import Gang, GangPolicy
from phalanx.model.cluster import Assignment, Attempt, Cause, Member, MemberState, Phase
from tests.core.stories import FAILED, OK, TERMINATED

MEANT = (MemberState.IMPORTING, MemberState.READY)
RETRIES, RESTARTS = 2, 8
FAIR_MS = 3_600_000         # after so long without a fault all is over
STORM_MS = 600_000


@dataclass
class Process:
    """One rank's container, where it is. What it says again whenever its agent is connected again is `says`."""

    assignment: int
    rank: int
    alive: bool = False
    told: bool = False
    user_code: bool = False
    says: ev.Event | None = None        # the last thing that its agent has to say of it
    has: dict[str, int] = field(default_factory=dict)       # input -> attempt, taken and not put
    taken: list[str] = field(default_factory=list)
    asking: bool = False


class World:
    """One function, a queue of inputs, one cluster of it after the other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        dice = self.random
        self.now = 1_000_000
        self.skew = 0                       # the wall clock's jumps: what the machines are told
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.size, self.clustered = dice.choice([(1, False), (1, True), (2, True), (3, True), (5, True)])
        self.policy = GangPolicy(
            finish_window_ms=dice.choice([0, 10_000]), grace_ms=dice.choice([0, 30_000]), prepare_timeout_ms=dice.choice([0, 60_000]),
            hello_timeout_ms=dice.choice([0, 30_000]), in_step=dice.random() < 0.7)
        self.max_inputs = dice.choice([1, 1, 3])
        self.trouble = dice.choice([0.0, 0.02, 0.2])
        self.lose, self.double, self.delay_ms = dice.choice([0.0, 0.1, 0.3]), dice.choice([0.0, 0.1]), dice.choice([10, 5_000])
        self.attempts: dict[str, int] = {}
        self.waiting: list[tuple[int, str]] = []    # not before, input
        self.paid: dict[str, tuple[int, int, int]] = {}     # of the user's budget, of the infrastructure's, of nobody's
        self.outputs: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.numbers = itertools.count(1)
        self.gang: Gang | None = None
        self.kept: list[Attempt] = []       # all attempts of this gang: rows
        self.processes: dict[tuple[int, int], Process] = {}
        self.steps = 0
        self.epoch = 0                      # of the control plane: its timers die with it
        self.is_fair = False

    def live(self) -> None:
        self.at(0, self._call)
        self.at(0, self._start_one)
        self.at(1_000, self._again)
        self.at(1_000, self._fault)
        self._run(self.now + STORM_MS)
        self.is_fair, self.lose, self.double, self.trouble = True, 0.0, 0.0, 0.0
        self._run(self.now + FAIR_MS)
        assert set(self.outputs) == set(self.attempts), f"without an end: {set(self.attempts) - set(self.outputs)}; {self.gang}"
        self._tell(ev.StopAsked(Cause.STOPPED, "the end"))
        self._run(self.now + FAIR_MS)
        assert self.gang is None, f"does not end: {self.gang and (self.gang.assignment, self.gang.members)}"

    # ------------------------------------------------------------ time and network

    def at(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + int(delay_ms), next(self.order), action))

    def _run(self, until_ms: int) -> None:
        while self.queue and self.queue[0][0] <= until_ms:
            self.now, _, action = heapq.heappop(self.queue)
            self.steps += 1
            action()
        self.now = until_ms

    def send(self, action: Callable[[], None]) -> None:
        """A message in either direction: lost, late, or twice."""
        if self.random.random() < self.lose:
            return
        for _ in range(2 if self.random.random() < self.double else 1):
            self.at(self.random.uniform(1, self.delay_ms), action)

    # ------------------------------------------------------------ the control plane

    def _call(self) -> None:
        if not self.is_fair:
            input_id = f"in-{len(self.attempts)}"
            self.attempts[input_id], self.paid[input_id] = 0, (0, 0, 0)
            self.waiting.append((self.now, input_id))
            self.at(self.random.expovariate(1 / 15_000), self._call)

    def _start_one(self) -> None:
        """A cluster for what waits, if there is none."""
        self.at(1_000 if not self.is_fair else 10_000, self._start_one)
        if self.gang is not None or not any(at <= self.now for at, _ in self.waiting):
            return
        number = next(self.numbers)
        assignment = Assignment(
            number, f"cu-{number}", "ap-1", "fu-1", self.size, self.clustered, max_inputs=self.max_inputs,
            timeout_ms=self.random.choice([0, 120_000]), startup_timeout_ms=self.random.choice([0, 60_000]))
        members = [Member(number, rank, f"ta-{number}-{rank}", f"node-{rank}") for rank in range(self.size)]
        self.gang, self.kept = Gang(assignment, members, [], self.policy), []
        self._tell(ev.Placed())

    def _tell(self, event: ev.Event, number: int | None = None) -> None:
        """To the machine of an assignment; one that is over hears nothing (fencing)."""
        if self.gang is None or number not in (None, self.gang.assignment.assignment):
            return
        gang, was = self.gang, self.gang.all_gone
        instructions = gang.handle(event, self.now + self.skew)
        self._look(gang)
        if gang.all_gone and not was:
            for process in self._own(gang):
                assert not process.alive or gang.members[process.rank].node_lost, "the verdict fell while a rank ran"
        for instruction in instructions:
            self._carry_out(gang, instruction)

    def _look(self, gang: Gang) -> None:
        phase, states = gang.assignment.phase, [member.state for member in gang.members]
        if phase in (Phase.PREPARING, Phase.STARTING):
            assert not any(state in MEANT for state in states), "user code before the first barrier"
        if phase == Phase.RUNNING:
            assert all(state in (*MEANT, MemberState.EXITED) for state in states), f"running with {states}"
        if self.policy.in_step:
            assert len(gang.open) <= self.max_inputs

    def _carry_out(self, gang: Gang, instruction: ev.Instruction) -> None:
        number = gang.assignment.assignment
        match instruction:
            case ev.Prepare(rank) | ev.Start(rank) | ev.CheckPeers(rank) | ev.StopRank(rank) | ev.Release(rank):
                self.send(lambda: self._obey(number, rank, instruction))
            case ev.AnswerHellos():
                assert all(self._process(number, rank).says is not None for rank in range(self.size))
                for rank in range(self.size):
                    self.at(self.random.uniform(1, 3_000), lambda rank=rank: self._imports(number, rank))   # type: ignore[misc]
            case ev.SetTimer(name, delay_ms, input_id, attempt):
                self._arm(ev.TimerFired(name, input_id, attempt), delay_ms, number)
            case ev.CancelOnRanks(input_id, ranks):
                for rank in ranks:
                    self.at(self.random.uniform(1, 1_000), lambda rank=rank: self._put(number, rank, input_id, TERMINATED))     # type: ignore[misc]
            case ev.Decide(input_id, attempt, status):
                self._decided(input_id, attempt, status)
            case ev.Requeue(input_id, _, _, charged):
                user, fleet, nobody = self.paid[input_id]
                self.paid[input_id] = (user, fleet + charged, nobody + (not charged))
                self._again_or(input_id, fleet + charged <= RESTARTS, restart_delay_ms(fleet + 1) if charged else 0, "given up")
            case ev.FailWaiting():
                for _, input_id in list(self.waiting):
                    self.waiting = [entry for entry in self.waiting if entry[1] != input_id]
                    self.attempts[input_id] += 1
                    self._decided(input_id, self.attempts[input_id], "failed")
            case ev.GangOver():
                assert all(not p.alive or gang.members[p.rank].node_lost for p in self._own(gang)), "a rank runs on a node that is free"
                assert not gang.open
                self.gang = None

    def _arm(self, fired: ev.TimerFired, delay_ms: int, number: int) -> None:
        epoch = self.epoch
        self.at(delay_ms, lambda: self._tell(fired, number) if self.epoch == epoch else None)

    def _decided(self, input_id: str, attempt: int, status: str) -> None:
        assert attempt == self.attempts[input_id], f"attempt {attempt} of {input_id} is decided while it is at {self.attempts[input_id]}"
        user, fleet, nobody = self.paid[input_id]
        if status == "failed" and user < RETRIES and input_id not in self.cancelled:
            self.paid[input_id] = (user + 1, fleet, nobody)
            self._again_or(input_id, True, 1_000, "")
            return
        self._again_or(input_id, False, 0, status)

    def _again_or(self, input_id: str, again: bool, delay_ms: int, status: str) -> None:
        assert input_id not in self.outputs, f"{input_id} was {self.outputs[input_id]} and is decided again: {status or 'it runs again'}"
        assert all(entry[1] != input_id for entry in self.waiting), f"{input_id} waits already"
        assert self.attempts[input_id] <= 1 + sum(self.paid[input_id]), f"{input_id} is at attempt {self.attempts[input_id]}"
        assert not (again and input_id in self.cancelled), f"{input_id} was cancelled, and runs again"
        if again:
            self.waiting.append((self.now + delay_ms, input_id))
        else:
            self.outputs[input_id] = status

    def _again(self) -> None:
        """Every agent is connected again: it says what it has, and is told what it may have missed."""
        self.at(self.random.choice([2_000, 20_000]) if not self.is_fair else 60_000, self._again)
        number = self.gang.assignment.assignment if self.gang is not None else 0
        for process in list(self.processes.values()):
            if process.says is not None and process.assignment >= number - 1:
                self.send(lambda p=process, said=process.says: self._tell(said, p.assignment))  # type: ignore[misc]
        if self.gang is not None:
            for rank in range(self.size):
                for instruction in self.gang.again(rank, self.now + self.skew):
                    self._carry_out(self.gang, instruction)

    def _restart(self) -> None:
        """A control plane from the rows, as server/gang_timers.py arms its clocks."""
        self.epoch += 1
        if self.gang is None:
            return
        rows = copy.deepcopy((self.gang.assignment, self.gang.members, self.kept))
        gang, self.kept = Gang(rows[0], rows[1], rows[2], self.policy), rows[2]
        self.gang, number, policy = gang, gang.assignment.assignment, self.policy
        limits = {"prepare": policy.prepare_timeout_ms, "hello": policy.hello_timeout_ms, "startup": gang.assignment.startup_timeout_ms}
        for name, limit_ms in (*limits.items(), ("linger", policy.linger_ms), ("drain", policy.grace_ms)):
            if limit_ms:
                self._arm(ev.TimerFired(name), limit_ms, number)
        for attempt in gang.open:
            for name, limit_ms in (("timeout", gang.assignment.timeout_ms), ("take", gang.assignment.timeout_ms)):
                if limit_ms and (len(attempt.fetched) == self.size) == (name == "timeout") and attempt.fetched:
                    self._arm(ev.TimerFired(name, attempt.input_id, attempt.attempt), limit_ms, number)
            if attempt.cancelling:
                self._arm(ev.TimerFired("cancel", attempt.input_id, attempt.attempt), policy.grace_ms, number)
            elif 0 in attempt.results and policy.in_step:
                self._arm(ev.TimerFired("finish", attempt.input_id, attempt.attempt), policy.finish_window_ms, number)

    # ------------------------------------------------------------ nodes and ranks

    def _process(self, number: int, rank: int) -> Process:
        return self.processes.setdefault((number, rank), Process(number, rank))

    def _own(self, gang: Gang) -> list[Process]:
        return [process for process in self.processes.values() if process.assignment == gang.assignment.assignment]

    def _obey(self, number: int, rank: int, instruction: ev.Instruction) -> None:
        process, dice = self._process(number, rank), self.random
        if isinstance(process.says, ev.Released):
            self.send(lambda: self._tell(ev.Released(rank), number))
            return
        match instruction:
            case ev.Prepare() if process.says is None:
                refused = dice.random() < self.trouble
                process.says = ev.PrepareRefused(rank, "code", "no") if refused else ev.Prepared(rank, f"fdaa::{rank}", f"10.0.0.{rank}")
                self.at(dice.uniform(1, 5_000), lambda: self._say(process))
            case ev.Start() if isinstance(process.says, ev.Prepared) and not process.alive and not process.told:
                process.alive = True
                self.at(dice.uniform(1, 3_000), lambda: self._hello(process))
            case ev.CheckPeers():
                self.send(lambda: self._tell(ev.PeersReached(rank), number))
            case ev.StopRank(_, number_of_signal, grace_ms):
                process.told = True
                patience = 0 if number_of_signal == 9 else dice.choice([10.0, grace_ms])
                self.at(patience, lambda: self._die(process, code=0 if not process.has else 130))
            case ev.Release():
                process.alive = False
                process.says = ev.Released(rank)
                self.send(lambda: self._tell(ev.Released(rank), number))

    def _say(self, process: Process) -> None:
        if process.says is not None:
            self.send(lambda said=process.says: self._tell(said, process.assignment))   # type: ignore[misc]

    def _die(self, process: Process, code: int = 1, signal: int = 0) -> None:
        if isinstance(process.says, ev.Exited | ev.Released):
            return
        process.alive = False
        process.says = ev.Exited(process.rank, self.now + self.skew, code, signal, told=process.told)
        self._say(process)

    def _hello(self, process: Process) -> None:
        """The runner asks until it is answered; its answer is held for all."""
        if process.alive and not process.user_code:
            self.send(lambda: self._tell(ev.Hello(process.rank), process.assignment))
            self.at(5_000, lambda: self._hello(process))

    def _imports(self, number: int, rank: int) -> None:
        process = self._process(number, rank)
        if not process.alive or process.user_code:
            return
        process.user_code = True
        if self.random.random() < self.trouble:
            self.send(lambda: self._tell(ev.TaskFailed(rank, b"", "ImportError"), number))
            self._die(process)
            return
        self.at(self.random.choice([100, 100, 100, 90_000]), lambda: self._asks(process))

    def _asks(self, process: Process) -> None:
        """For inputs, as the runner: again and again while it has room."""
        gang, rank = self.gang, process.rank
        if not process.alive:
            return
        self.at(self.random.uniform(500, 2_000), lambda: self._asks(process))
        if gang is None or gang.assignment.assignment != process.assignment:
            return
        ready = [m.state == MemberState.READY for m in gang.members]
        if self.clustered and not all(ready):
            self.send(lambda: self._tell(ev.ClusterHello(rank), process.assignment))
            return
        self._tell(ev.AsksForInputs(rank), process.assignment)
        if gang.must_leave(rank) and not process.has:
            self._die(process, code=0)
        elif self.gang is gang and not gang.must_leave(rank) and len(process.has) < self.max_inputs:
            self._take(gang, process)

    def _take(self, gang: Gang, process: Process) -> None:
        """Leased: an answer that is lost is given again, so this is one moment."""
        attempt = gang.offer(process.rank)
        if attempt is None and gang.room(process.rank):
            entry = next((entry for entry in self.waiting if entry[0] <= self.now), None)
            if entry is None:
                return
            self.waiting.remove(entry)
            self.attempts[entry[1]] += 1
            self._tell(ev.Delivered(entry[1], self.attempts[entry[1]]))
            self.kept.append(gang.open[-1])
            attempt = gang.offer(process.rank)
        if attempt is None:
            return
        self._tell(ev.Fetched(process.rank, attempt.input_id))
        for other in self.processes.values():
            alive = other.alive and other.assignment != process.assignment and attempt.input_id in other.has
            assert not alive, f"{attempt.input_id} runs in two assignments at once"
        process.has[attempt.input_id] = attempt.attempt
        process.taken.append(attempt.input_id)
        shorter = min(len(process.taken), *(len(p.taken) for p in self._own(gang)))
        in_step = all(p.taken[:shorter] == process.taken[:shorter] for p in self._own(gang))
        assert in_step or any(a.cancelling for a in self.kept), "out of step"
        result = FAILED if self.random.random() < self.trouble else OK
        self.at(self.random.uniform(100, 30_000), lambda: self._put(process.assignment, process.rank, attempt.input_id, result))

    def _put(self, number: int, rank: int, input_id: str, result: object) -> None:
        """The runner asks until it is answered: said at least once."""
        process = self._process(number, rank)
        if not process.alive or input_id not in process.has:
            return
        if self.random.random() < self.trouble:
            self._die(process, code=1)
            return
        attempt = process.has.pop(input_id)
        put = ev.Put(rank, input_id, attempt, result)   # type: ignore[arg-type]
        self.at(self.random.uniform(1, self.delay_ms), lambda: self._tell(put, number))
        for late_ms in (10_000, 20_000):
            self.at(self.random.uniform(1, self.delay_ms) + late_ms, lambda: self._tell(put, number) if process.alive else None)

    # ------------------------------------------------------------ faults

    def _fault(self) -> None:
        if self.is_fair:
            return
        dice = self.random
        self.at(dice.expovariate(1 / 15_000), self._fault)
        kind = dice.choice(["restart", "restart", "die", "lost", "jump", "cancel", "stop", "drain", "unseen"])
        alive = [process for process in self.processes.values() if process.alive]
        if kind == "restart":
            self._restart()
        elif kind == "jump":
            self.skew += dice.randint(-600_000, 600_000)
        elif kind == "die" and alive:
            self._die(dice.choice(alive), code=0, signal=dice.choice([9, 11]))
        elif kind == "unseen" and alive:
            process = dice.choice(alive)
            process.alive, process.says = False, ev.Exited(process.rank, self.now, unseen=True)
            self._say(process)
        elif kind == "lost" and self.gang is not None:      # the machine is gone, and what it ran
            rank, number = dice.randrange(self.size), self.gang.assignment.assignment
            process = self._process(number, rank)
            process.alive, process.says = False, ev.Released(rank)
            self._tell(ev.NodeLost(rank, "gone"))
        elif kind == "cancel" and self.gang is not None and self.gang.open:
            cancelled = ev.CancelAsked(dice.choice(self.gang.open).input_id, dice.random() < 0.3)
            self.cancelled.add(cancelled.input_id)
            self._tell(cancelled)
        elif kind in ("stop", "drain"):
            self._tell(ev.StopAsked(dice.choice([Cause.STOPPED, Cause.IDLE, Cause.PREEMPTED]), "asked", graceful=kind == "drain"))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_gangs_in_bad_weather_keep_the_rules_and_end(seed: int) -> None:
    note(f"World({seed}).live()")
    World(seed).live()


@pytest.mark.full
@settings(max_examples=1_500, deadline=None)
@given(st.integers(0, 2**32))
def test_many_gangs_in_bad_weather(seed: int) -> None:
    note(f"World({seed}).live()")
    World(seed).live()
