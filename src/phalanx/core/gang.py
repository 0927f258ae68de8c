"""One assignment's life, decided: events in, instructions out (design rules 1, 2, 4 and 5). No I/O, no clock.

    Placed -> prepare every rank -> all prepared -> start every rank, check peers -> all said hello and reach each other
    -> RUNNING, hellos are answered -> all imported -> cluster hellos are answered -> inputs, in step
    -> first failure, stop, idle or decision -> ENDING, every rank stopped -> all confirmed gone -> verdict -> released -> ENDED

The way up is gang_start.py, inputs are gang_inputs.py, the end is gang_end.py, the records they share gang_records.py.
A plain function is a gang of one that is not clustered: its failed inputs do not end it.
"""

from __future__ import annotations

from phalanx.core import events as ev
from phalanx.core import gang_end, gang_inputs, gang_start
from phalanx.core.gang_records import ALIVE, GangPolicy, GangRecords
from phalanx.core.verdict import blamed_nodes
from phalanx.model.cluster import Assignment, Attempt, Member, MemberState, Phase

__all__ = ["Gang", "GangPolicy"]


class Gang:
    """The machine. It changes its own records; `take_changed` says which, for the caller to persist."""

    def __init__(self, assignment: Assignment, members: list[Member], attempts: list[Attempt], policy: GangPolicy) -> None:
        self._records = GangRecords(assignment, members, attempts, policy)

    @property
    def assignment(self) -> Assignment:
        return self._records.assignment

    @property
    def members(self) -> list[Member]:
        """In rank order."""
        return self._records.members

    @property
    def open(self) -> list[Attempt]:
        """Attempts that are not decided, in the order in which every rank gets them."""
        return self._records.open

    @property
    def policy(self) -> GangPolicy:
        return self._records.policy

    # ------------------------------------------------------------ what others ask

    def offer(self, rank: int) -> Attempt | None:
        """The next attempt that this rank has not fetched, in the order that holds for all ranks."""
        return next((a for a in self.open if gang_inputs.is_new_to(a, rank)), None)

    def offers(self, rank: int) -> int:
        """How many attempts this rank has not fetched."""
        return sum(gang_inputs.is_new_to(attempt, rank) for attempt in self.open)

    def room(self, rank: int = 0) -> int:
        """How many more inputs the server may deliver for this rank, which has fetched all there are."""
        return gang_inputs.room(self._records, rank)

    @property
    def is_counted(self) -> bool:
        """Does the autoscaler count it as one of the function's clusters?"""
        return self.assignment.phase in (Phase.PREPARING, Phase.STARTING, Phase.RUNNING) and not self.assignment.draining

    @property
    def all_gone(self) -> bool:
        """Is the end of every rank confirmed? Its verdict fell then."""
        return self._records.all_gone

    @property
    def died_early(self) -> bool:
        """Did user code fail before it took an input?"""
        return gang_end.died_early(self._records)

    @property
    def took_inputs(self) -> bool:
        """Was an input ever delivered to it?"""
        return self._records.next_position > 1

    @property
    def blamed_nodes(self) -> tuple[str, ...]:
        """The nodes that its end speaks against."""
        return blamed_nodes(self.assignment, self.members)

    def is_beginning(self, rank: int) -> bool:
        """In import or @enter?"""
        return self._records.is_beginning(rank)

    def must_leave(self, rank: int) -> bool:
        """Should a rank that asks for inputs get the kill switch?"""
        if self.assignment.phase in (Phase.ENDING, Phase.ENDED):
            return True
        return self.assignment.draining and self.offer(rank) is None

    def cancelled_on(self, rank: int) -> list[str]:
        """Inputs that this rank runs and that are being cancelled."""
        return [a.input_id for a in self.open if a.cancelling and rank in a.fetched and rank not in a.results]

    def again(self, rank: int, now_ms: int) -> list[ev.Instruction]:
        """What the agent of this rank should be told once more when it is back: it may have missed it. All of it is idempotent."""
        member, ending = self.members[rank], self.assignment.phase == Phase.ENDING
        if member.state == MemberState.PREPARING:
            return [ev.Prepare(rank)]
        if member.state == MemberState.EXITED:
            return [ev.Release(rank)] if self._records.verdict_fell else []
        if member.state in ALIVE and ending:
            leaves = gang_end.lingers(self._records, member) and now_ms < self.assignment.stopped_ms + self.policy.linger_ms
            return [] if leaves else [gang_end.stop_rank(self._records, member)]
        if self.assignment.phase == Phase.STARTING and member.state != MemberState.PREPARED:
            unchecked = self.assignment.size > 1 and not member.reached
            check = ev.CheckPeers(rank, gang_start.peers_of(self._records, rank))
            return [ev.Start(rank), check] if unchecked else [ev.Start(rank)]
        return []

    def take_changed(self) -> list[Assignment | Member | Attempt]:
        changed = list(self._records.changed.values())
        self._records.changed.clear()
        return changed

    # ------------------------------------------------------------ events

    def handle(self, event: ev.Event, now_ms: int) -> list[ev.Instruction]:
        """Apply one event. Events about ranks that are past caring change nothing."""
        gang = self._records
        match event:
            case ev.Placed():
                return gang_start.placed(gang)
            case ev.Prepared():
                return gang_start.prepared(gang, event)
            case ev.PrepareRefused():
                return gang_start.refused(gang, event, now_ms)
            case ev.PeersReached():
                return gang_start.peers_reached(gang, event, now_ms)
            case ev.Hello(rank):
                return gang_start.hello(gang, rank, now_ms)
            case ev.ClusterHello(rank):
                return gang_start.cluster_hello(gang, rank)
            case ev.AsksForInputs(rank):
                return gang_start.asks(gang, rank, now_ms)
            case ev.Delivered(input_id, attempt):
                return gang_inputs.delivered(gang, input_id, attempt, now_ms)
            case ev.Fetched(rank, input_id):
                return gang_inputs.fetched(gang, rank, input_id)
            case ev.Put():
                return gang_inputs.put(gang, event, now_ms)
            case ev.CancelAsked(input_id, terminate):
                return gang_inputs.cancel(gang, input_id, terminate, now_ms)
            case ev.TaskFailed(rank, result, sentence):
                return gang_end.task_failed(gang, rank, result, sentence, now_ms)
            case ev.Exited():
                return gang_end.exited(gang, event, now_ms)
            case ev.NodeLost(rank, sentence):
                return gang_end.node_lost(gang, rank, sentence, now_ms)
            case ev.Released(rank, remains):
                return gang_end.released(gang, rank, remains, now_ms)
            case ev.StopAsked(cause, sentence, graceful):
                stop = gang_end.drain if graceful else gang_end.stop_asked
                return stop(gang, cause, sentence, now_ms)
            case ev.TimerFired():
                return self._timer(event, now_ms)

    def _timer(self, event: ev.TimerFired, now_ms: int) -> list[ev.Instruction]:
        match event.name:
            case "prepare":
                return gang_start.prepare_over(self._records, now_ms)
            case "hello":
                return gang_start.hello_over(self._records, now_ms)
            case "startup":
                return gang_start.startup_over(self._records, now_ms)
            case "drain":
                return gang_end.drain_over(self._records, now_ms)
            case "linger":
                return gang_end.linger_over(self._records)
        return gang_inputs.timer(self._records, event, now_ms)
