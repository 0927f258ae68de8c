"""One assignment's life, decided: events in, instructions out (design rules 1, 2, 4 and 5). No I/O, no clock.

    Placed -> prepare every rank -> all prepared -> start every rank, check peers -> all said hello and reach each other
    -> RUNNING, hellos are answered -> all imported -> cluster hellos are answered -> inputs, in step
    -> first failure, stop, idle or decision -> ENDING, every rank stopped -> all confirmed gone -> verdict -> released -> ENDED

A plain function is a gang of one that is not clustered: its failed inputs do not end it.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from phalanx.core import events as ev
from phalanx.core.states import move_assignment, move_member
from phalanx.core.verdict import exit_failure, first_cause
from phalanx.model.cluster import Assignment, Attempt, Cause, Failure, Member, MemberState, Phase, RankResult

RING_ABOVE = 16   # pairwise reachability up to here, in a ring above (design rule 2)
ALIVE = (MemberState.STARTING, MemberState.HELLO, MemberState.IMPORTING, MemberState.READY)


@dataclass(frozen=True)
class GangPolicy:
    """Times in milliseconds."""

    finish_window_ms: int = 10_000
    grace_ms: int = 30_000
    linger_ms: int = 3_000          # for a rank that waits for inputs to leave by the kill switch


class Gang:
    """The machine. It changes its own records; `take_changed` says which, for the caller to persist."""

    def __init__(self, assignment: Assignment, members: list[Member], attempts: list[Attempt], policy: GangPolicy) -> None:
        self.assignment = assignment
        self.members = sorted(members, key=lambda member: member.rank)
        self.policy = policy
        self.open = sorted((a for a in attempts if not a.decided), key=lambda attempt: attempt.position)
        # Decided after the finish window while ranks still ran them: those ranks are busy until they put, and must be interrupted.
        self._overdue = [a for a in attempts if a.decided and len(a.results) < assignment.size]
        self._next_position = max((a.position for a in attempts), default=0) + 1
        self._changed: dict[int, Assignment | Member | Attempt] = {}
        self._dirty: dict[int, str] = {}

    # ------------------------------------------------------------ what others ask

    def offer(self, rank: int) -> Attempt | None:
        """The next attempt that this rank has not fetched, in the order that holds for all ranks."""
        return next((a for a in self.open if self._is_new_to(a, rank)), None)

    def offers(self, rank: int) -> int:
        """How many attempts this rank has not fetched."""
        return sum(self._is_new_to(attempt, rank) for attempt in self.open)

    @property
    def takes_inputs(self) -> bool:
        """May the server deliver one more input?"""
        running = self.assignment.phase == Phase.RUNNING and not self.assignment.draining
        return running and len(self.open) < self.assignment.max_inputs

    @property
    def is_counted(self) -> bool:
        """Does the autoscaler count it as one of the function's clusters?"""
        return self.assignment.phase in (Phase.PREPARING, Phase.STARTING, Phase.RUNNING) and not self.assignment.draining

    @property
    def all_gone(self) -> bool:
        """Is the end of every rank confirmed? Its verdict fell then."""
        return all(member.state in (MemberState.EXITED, MemberState.RELEASED) for member in self.members)

    @property
    def died_early(self) -> bool:
        """Did user code fail before it took an input? Not where it was let go: what waits was not for it."""
        verdict = self.assignment.verdict
        never_ran = self._next_position == 1 and not self.assignment.draining
        return self.all_gone and never_ran and verdict is not None and verdict.user_fault and verdict.cause in _USER_CAUSES

    def is_beginning(self, rank: int) -> bool:
        """In import or @enter? A cluster's rank is READY before @enter, and through it when it asks for inputs."""
        member = self.members[rank]
        in_enter = member.state == MemberState.READY and not member.asked and not self._is_busy(rank)
        return member.state == MemberState.IMPORTING or in_enter

    def must_leave(self, rank: int) -> bool:
        """Should a rank that asks for inputs get the kill switch?"""
        if self.assignment.phase in (Phase.ENDING, Phase.ENDED):
            return True
        return self.assignment.draining and self.offer(rank) is None

    def cancelled_on(self, rank: int) -> list[str]:
        """Inputs that this rank runs and that are being cancelled."""
        return [a.input_id for a in self.open if a.cancelling and rank in a.fetched and rank not in a.results]

    def again(self, rank: int) -> list[ev.Instruction]:
        """What the agent of this rank should be told once more when it is back: it may have missed it. All of it is idempotent."""
        member, ending = self.members[rank], self.assignment.phase == Phase.ENDING
        if member.state == MemberState.PREPARING:
            return [ev.Prepare(rank)]
        if member.state == MemberState.EXITED:
            return [ev.Release(rank)] if self._verdict_fell else []
        if member.state in ALIVE and ending:
            return [ev.StopRank(rank, signal.SIGINT, self.policy.grace_ms, self.assignment.stopping)]
        if self.assignment.phase == Phase.STARTING and member.state != MemberState.PREPARED:
            unchecked = self.assignment.size > 1 and not member.reached
            return [ev.Start(rank), ev.CheckPeers(rank, self._peers_of(rank))] if unchecked else [ev.Start(rank)]
        return []

    def take_changed(self) -> list[Assignment | Member | Attempt]:
        changed = list(self._changed.values())
        self._changed.clear()
        return changed

    # ------------------------------------------------------------ events

    def handle(self, event: ev.Event, now_ms: int) -> list[ev.Instruction]:
        """Apply one event. Events about ranks that are past caring change nothing."""
        match event:
            case ev.Placed():
                return [ev.Prepare(member.rank) for member in self.members]
            case ev.Prepared():
                return self._prepared(event)
            case ev.PrepareRefused():
                return self._refused(event, now_ms)
            case ev.PeersReached():
                return self._peers_reached(event, now_ms)
            case ev.Hello(rank):
                return self._hello(rank, now_ms)
            case ev.ClusterHello(rank):
                return self._cluster_hello(rank)
            case ev.Delivered(input_id, attempt):
                return self._delivered(input_id, attempt)
            case ev.AsksForInputs(rank):
                return self._asks(rank)
            case ev.Fetched(rank, input_id):
                return self._fetched(rank, input_id)
            case ev.Put():
                return self._put(event, now_ms)
            case ev.TaskFailed(rank, result, sentence):
                return self._fail(Failure(Cause.EXCEPTION, rank, now_ms, sentence, result), now_ms)
            case ev.Exited():
                return self._exited(event, now_ms)
            case ev.NodeLost(rank, sentence):
                return self._node_lost(rank, sentence, now_ms)
            case ev.Released(rank, remains):
                return self._released(rank, remains, now_ms)
            case ev.StopAsked(cause, sentence, graceful):
                return self._drain(cause, sentence, now_ms) if graceful else self._stop_asked(cause, sentence, now_ms)
            case ev.CancelAsked(input_id, terminate):
                return self._cancel(input_id, terminate, now_ms)
            case ev.TimerFired():
                return self._timer(event, now_ms)

    # ------------------------------------------------------------ start

    def _prepared(self, event: ev.Prepared) -> list[ev.Instruction]:
        member = self.members[event.rank]
        if member.state != MemberState.PREPARING:
            return []
        member.ipv6, member.ipv4, member.http_address = event.ipv6, event.ipv4, event.http_address
        self._move(member, MemberState.PREPARED)
        if self.assignment.phase != Phase.PREPARING or any(m.state != MemberState.PREPARED for m in self.members):
            return []
        self._phase(Phase.STARTING)
        instructions: list[ev.Instruction] = []
        for member in self.members:
            self._move(member, MemberState.STARTING)
            instructions.append(ev.Start(member.rank))
        # Networks stand since Prepare, so peers can be checked while the containers start.
        instructions += [ev.CheckPeers(m.rank, self._peers_of(m.rank)) for m in self.members if self.assignment.size > 1]
        return instructions

    def _refused(self, event: ev.PrepareRefused, now_ms: int) -> list[ev.Instruction]:
        failure = Failure(Cause.REFUSED, event.rank, now_ms, event.sentence, user_fault=event.user_fault)
        member = self.members[event.rank]
        if member.state != MemberState.PREPARING:
            return []
        member.sentence = event.sentence
        self._move(member, MemberState.EXITED)
        return self._fail(failure, now_ms)

    def _peers_of(self, rank: int) -> tuple[str, ...]:
        size = self.assignment.size
        peers = [r for r in range(size) if r != rank] if size <= RING_ABOVE else [(rank + 1) % size]
        return tuple(address for r in peers for address in (self.members[r].ipv6, self.members[r].ipv4) if address)

    def _peers_reached(self, event: ev.PeersReached, now_ms: int) -> list[ev.Instruction]:
        member = self.members[event.rank]
        if self.assignment.phase != Phase.STARTING or member.reached:
            return []
        if event.unreachable:
            addresses = ", ".join(event.unreachable)
            sentence = f"rank {event.rank} on node {member.node_id} can't reach {addresses}: the nodes' network does not connect them"
            return self._fail(Failure(Cause.NODE, event.rank, now_ms, sentence, user_fault=False), now_ms)
        member.reached = True
        self._touch(member)
        return self._first_barrier(now_ms)

    def _hello(self, rank: int, now_ms: int) -> list[ev.Instruction]:
        member = self.members[rank]
        if member.state != MemberState.STARTING or self.assignment.phase != Phase.STARTING:
            return []
        self._move(member, MemberState.HELLO)
        return self._first_barrier(now_ms)

    def _first_barrier(self, now_ms: int) -> list[ev.Instruction]:
        reached = self.assignment.size == 1 or all(m.reached for m in self.members)
        if not reached or any(m.state != MemberState.HELLO for m in self.members):
            return []
        self._phase(Phase.RUNNING)
        self.assignment.running_ms = now_ms
        for member in self.members:
            member.started_ms = now_ms
            self._move(member, MemberState.IMPORTING)
        self.assignment.idle_since_ms = now_ms      # until an input comes: the one it was started for may be gone
        startup = self.assignment.startup_timeout_ms
        timers: list[ev.Instruction] = [ev.SetTimer("startup", startup)] if startup else []
        return [ev.AnswerHellos(), ev.BecameIdle(), *timers]

    def _cluster_hello(self, rank: int) -> list[ev.Instruction]:
        member = self.members[rank]
        if member.state != MemberState.IMPORTING:
            return []
        self._move(member, MemberState.READY)
        return [ev.AnswerClusterHellos()] if all(m.state == MemberState.READY for m in self.members) else []

    # ------------------------------------------------------------ inputs

    def _delivered(self, input_id: str, attempt: int) -> list[ev.Instruction]:
        delivery = Attempt(input_id, attempt, self.assignment.assignment, self._next_position)
        self._next_position += 1
        self.open.append(delivery)
        self._touch(delivery)
        self.assignment.idle_since_ms = 0
        self._touch(self.assignment)
        return [ev.WakeRanks()]

    def _asks(self, rank: int) -> list[ev.Instruction]:
        member = self.members[rank]
        if not member.asked:
            member.asked = True
            self._touch(member)
        if member.state != MemberState.IMPORTING or self.assignment.clustered:
            return []
        self._move(member, MemberState.READY)
        return [ev.BecameIdle()] if not self.open else []

    def _fetched(self, rank: int, input_id: str) -> list[ev.Instruction]:
        attempt = self._attempt(input_id)
        if attempt is None or rank in attempt.fetched:
            return []
        attempt.fetched.append(rank)
        self._touch(attempt)
        is_first = len(attempt.fetched) == 1
        if not is_first or not self.assignment.timeout_ms:
            return []
        return [ev.SetTimer("timeout", self.assignment.timeout_ms, input_id, attempt.attempt)]

    def _put(self, event: ev.Put, now_ms: int) -> list[ev.Instruction]:
        for overdue in self._overdue:
            if overdue.input_id == event.input_id and event.attempt in (0, overdue.attempt):
                overdue.results.setdefault(event.rank, event.result)
        attempt = self._attempt(event.input_id)
        if attempt is None or event.rank in attempt.results or event.attempt not in (0, attempt.attempt):
            return []
        attempt.results[event.rank] = event.result
        self._touch(attempt)
        if self.assignment.phase == Phase.ENDING:
            return []   # the verdict looks at it when every rank is confirmed gone
        if event.result.status == "failed" and self.assignment.clustered and not attempt.cancelling:
            failure = Failure(Cause.EXCEPTION, event.rank, now_ms, event.result.sentence, event.result.result, input_id=event.input_id)
            return self._fail(failure, now_ms)
        if len(attempt.results) == self.assignment.size:
            return self._decide_complete(attempt, now_ms)
        if event.rank == 0 and event.result.status == "ok" and not attempt.cancelling:
            return [ev.SetTimer("finish", self.policy.finish_window_ms, event.input_id, attempt.attempt)]
        return []

    def _decide_complete(self, attempt: Attempt, now_ms: int) -> list[ev.Instruction]:
        worst = next((r for r in attempt.results.values() if r.status != "ok"), None)
        leader = attempt.results[0]
        decision = ev.Decide(attempt.input_id, attempt.attempt, (worst or leader).status, worst or leader)
        return [self._close(attempt, decision), *self._after_decision(now_ms)]

    def _after_decision(self, now_ms: int) -> list[ev.Instruction]:
        if self.open:
            return [ev.WakeRanks()]
        self.assignment.idle_since_ms = now_ms
        self._touch(self.assignment)
        return [ev.WakeRanks(), ev.BecameIdle(), *self._drain_timer()]

    def _drain_timer(self) -> list[ev.Instruction]:
        """A gang that takes no more inputs and has none open has this long to leave by the kill switch."""
        draining = self.assignment.draining and not self.open and self.assignment.phase == Phase.RUNNING
        return [ev.SetTimer("drain", self.policy.grace_ms)] if draining else []

    def _cancel(self, input_id: str, terminate: bool, now_ms: int) -> list[ev.Instruction]:
        attempt = self._attempt(input_id)
        if attempt is None or attempt.cancelling:
            return []
        attempt.cancelling = True
        self._touch(attempt)
        if terminate:
            return self._stop_asked(Cause.CANCELLED, "the call was cancelled", now_ms)
        for member in self.members:   # a rank that has not taken it will not
            if member.rank not in attempt.fetched and member.rank not in attempt.results:
                attempt.results[member.rank] = RankResult("terminated")
        if len(attempt.results) == self.assignment.size:
            return self._decide_complete(attempt, now_ms)
        running = tuple(r for r in attempt.fetched if r not in attempt.results)
        return [ev.CancelOnRanks(input_id, running), ev.SetTimer("cancel", self.policy.grace_ms, input_id, attempt.attempt)]

    def _timer(self, event: ev.TimerFired, now_ms: int) -> list[ev.Instruction]:
        name = event.name
        if name == "drain" and self.assignment.phase != Phase.ENDED and self.assignment.draining and not self.assignment.stopping:
            return self._stop(self.assignment.verdict.cause if self.assignment.verdict else Cause.IDLE, now_ms)
        if name == "linger" and self.assignment.phase == Phase.ENDING:
            alive = [m.rank for m in self.members if m.state in ALIVE]
            return [ev.StopRank(rank, signal.SIGINT, self.policy.grace_ms, self.assignment.stopping) for rank in alive]
        if name == "startup" and self.assignment.phase == Phase.RUNNING:
            return self._startup_over(now_ms)
        attempt = self._attempt(event.input_id)
        if attempt is None or attempt.attempt != event.attempt or self.assignment.phase != Phase.RUNNING:
            return []
        if name == "timeout":
            return self._timed_out(attempt, now_ms)
        if name == "cancel":
            return self._stop(Cause.CANCELLED, now_ms)
        if name == "finish" and attempt.results.get(0) is not None and not attempt.cancelling:
            decision = ev.Decide(attempt.input_id, attempt.attempt, "ok", attempt.results[0])
            self._overdue.append(attempt)
            return [self._close(attempt, decision), *self._stop(Cause.RELEASED, now_ms)]
        return []

    def _timed_out(self, attempt: Attempt, now_ms: int) -> list[ev.Instruction]:
        """One clock per attempt, from its first delivery to its last rank."""
        late = next((rank for rank in range(self.assignment.size) if rank not in attempt.results), 0)
        sentence = f"the input ran longer than its timeout of {self.assignment.timeout_ms / 1000:g} s{self._on(late)}"
        return self._fail(Failure(Cause.TIMEOUT, late, now_ms, sentence, input_id=attempt.input_id), now_ms)

    def _startup_over(self, now_ms: int) -> list[ev.Instruction]:
        beginning = [member for member in self.members if self.is_beginning(member.rank)]
        if not beginning:
            return []
        late = min(beginning, key=lambda member: member.state != MemberState.IMPORTING).rank    # others may only wait for its hello
        seconds = self.assignment.startup_timeout_ms / 1000
        sentence = f"import and @enter took longer than the startup timeout of {seconds:g} s{self._on(late)}"
        return self._fail(Failure(Cause.TIMEOUT, late, now_ms, sentence), now_ms)

    def _on(self, rank: int) -> str:
        return f" on rank {rank} (node {self.members[rank].node_id})" if self.assignment.clustered else ""

    # ------------------------------------------------------------ end

    def _drain(self, cause: str, sentence: str, now_ms: int) -> list[ev.Instruction]:
        if self.assignment.draining or self.assignment.phase in (Phase.ENDING, Phase.ENDED):
            return []
        if self.assignment.phase != Phase.RUNNING:
            return self._stop(cause, now_ms)
        self.assignment.draining = True
        self.assignment.verdict = Failure(cause, 0, now_ms, sentence, user_fault=False)
        self._touch(self.assignment)
        return [ev.WakeRanks(), *self._drain_timer()]

    def _stop_asked(self, cause: str, sentence: str, now_ms: int) -> list[ev.Instruction]:
        if self.assignment.phase in (Phase.ENDING, Phase.ENDED):
            return []
        self.assignment.failures.append(Failure(cause, -1, now_ms, sentence, user_fault=False))
        return self._stop(cause, now_ms)

    def _fail(self, failure: Failure, now_ms: int) -> list[ev.Instruction]:
        if self.assignment.phase == Phase.ENDED:
            return []
        self.assignment.failures.append(failure)
        self._touch(self.assignment)
        if self.assignment.phase == Phase.ENDING:
            return self._end_if_all_gone(now_ms)
        return self._stop(failure.cause, now_ms)

    def _stop(self, cause: str, now_ms: int) -> list[ev.Instruction]:
        """Tell every rank to stop, at once."""
        self._phase(Phase.ENDING)
        self.assignment.stopping = cause
        self.assignment.stopped_ms = now_ms
        instructions: list[ev.Instruction] = [ev.WakeRanks()]
        lingering = False
        for member in self.members:
            if member.state in (MemberState.PREPARING, MemberState.PREPARED):
                self._move(member, MemberState.EXITED)   # never started: Release undoes the preparation
            elif member.state in (MemberState.STARTING, MemberState.HELLO) or self._only_imports(member):
                instructions.append(ev.StopRank(member.rank, signal.SIGKILL, 0, cause))
            elif member.state in ALIVE and self._is_busy(member.rank):
                instructions.append(ev.StopRank(member.rank, signal.SIGINT, self.policy.grace_ms, cause))
            elif member.state in ALIVE and not lingering:
                lingering = True
                instructions.append(ev.SetTimer("linger", self.policy.linger_ms))
        return instructions + self._end_if_all_gone(now_ms)

    def _only_imports(self, member: Member) -> bool:
        return self.assignment.clustered and member.state == MemberState.IMPORTING

    def _is_busy(self, rank: int) -> bool:
        return any(rank in a.fetched and rank not in a.results for a in (*self.open, *self._overdue))

    def _exited(self, event: ev.Exited, now_ms: int) -> list[ev.Instruction]:
        member = self.members[event.rank]
        if member.state in (MemberState.EXITED, MemberState.RELEASED):
            return []
        unfinished = [a for a in self.open if event.rank not in a.results and not a.cancelling]
        member.exit_code, member.exit_signal, member.oom_killed = event.code, event.signal, event.oom_killed
        member.sentence, member.ended_ms = event.sentence, event.at_ms
        self._move(member, MemberState.EXITED)
        failure = exit_failure(event, member, self.assignment, has_unfinished=bool(unfinished))
        if failure is not None:
            self.assignment.failures.append(failure)
            self._touch(self.assignment)
        if self.assignment.phase == Phase.ENDING:
            return self._end_if_all_gone(now_ms)
        if failure is not None:
            return self._stop(failure.cause, now_ms)
        # It left by itself with nothing open (single use, stop_fetching_inputs, kill switch): the others follow.
        drained = self._drain(Cause.DONE, "left by itself", now_ms)
        if all(m.state == MemberState.EXITED for m in self.members):
            return drained + self._stop(self.assignment.verdict.cause if self.assignment.verdict else Cause.DONE, now_ms)
        return drained

    def _node_lost(self, rank: int, sentence: str, now_ms: int) -> list[ev.Instruction]:
        member = self.members[rank]
        if member.node_lost or member.state == MemberState.RELEASED:
            return []
        member.node_lost = True
        self._touch(member)
        if member.state == MemberState.EXITED:
            return self._released(rank, "", now_ms) if self._verdict_fell else []
        member.sentence, member.ended_ms = sentence, now_ms
        self._move(member, MemberState.EXITED)
        return self._fail(Failure(Cause.NODE, rank, now_ms, sentence, user_fault=False), now_ms)

    @property
    def _verdict_fell(self) -> bool:
        return self.assignment.phase == Phase.ENDING and self.all_gone

    def _end_if_all_gone(self, now_ms: int) -> list[ev.Instruction]:
        """The verdict, once every member has a confirmed end; its outputs; and everything of the members may go."""
        if any(m.state != MemberState.EXITED for m in self.members):
            return []
        verdict = first_cause(self.assignment)
        self.assignment.verdict = verdict
        self._touch(self.assignment)
        instructions: list[ev.Instruction] = []
        for attempt in list(self.open):
            instructions.append(self._close(attempt, self._outcome(attempt, verdict)))
        if self.died_early:
            instructions.append(ev.FailWaiting(verdict))
        instructions += [ev.Release(member.rank) for member in self.members]    # a lost node may be back
        for member in self.members:
            if member.node_lost:   # nobody is left there to answer
                instructions += self._released(member.rank, "", now_ms)
        return instructions

    def _outcome(self, attempt: Attempt, verdict: Failure) -> ev.Decide | ev.Requeue:
        """What an input that was open at the end gets."""
        results = attempt.results
        if len(results) == self.assignment.size and all(r.status == "ok" for r in results.values()):
            return ev.Decide(attempt.input_id, attempt.attempt, "ok", results[0])
        if attempt.cancelling or verdict.cause in (Cause.CANCELLED, Cause.STOPPED):
            return ev.Decide(attempt.input_id, attempt.attempt, "terminated", failure=verdict)
        if not verdict.user_fault or (verdict.input_id and verdict.input_id != attempt.input_id):
            return ev.Requeue(attempt.input_id, verdict.sentence)
        return ev.Decide(attempt.input_id, attempt.attempt, "failed", failure=verdict)

    def _released(self, rank: int, remains: str, now_ms: int) -> list[ev.Instruction]:
        member = self.members[rank]
        if member.state != MemberState.EXITED or not self._verdict_fell:
            return []
        if remains:
            self._dirty[rank] = remains
        self._move(member, MemberState.RELEASED)
        if any(m.state != MemberState.RELEASED for m in self.members):
            return []
        self._phase(Phase.ENDED)
        self.assignment.ended_ms = now_ms
        return [ev.GangOver(dict(self._dirty))]

    # ------------------------------------------------------------ records

    @staticmethod
    def _is_new_to(attempt: Attempt, rank: int) -> bool:
        return rank not in attempt.fetched and rank not in attempt.results and not attempt.cancelling

    def _attempt(self, input_id: str) -> Attempt | None:
        return next((a for a in self.open if a.input_id == input_id), None)

    def _close(self, attempt: Attempt, decision: ev.Decide | ev.Requeue) -> ev.Decide | ev.Requeue:
        attempt.decided = True
        self.open.remove(attempt)
        self._touch(attempt)
        return decision

    def _phase(self, to: Phase) -> None:
        move_assignment(self.assignment, to)
        self._touch(self.assignment)

    def _move(self, member: Member, to: MemberState) -> None:
        move_member(member, to)
        self._touch(member)

    def _touch(self, record: Assignment | Member | Attempt) -> None:
        self._changed[id(record)] = record


_USER_CAUSES = (Cause.EXCEPTION, Cause.TIMEOUT, Cause.OOM, Cause.SIGNAL, Cause.EXIT, Cause.REFUSED)
