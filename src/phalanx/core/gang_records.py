"""What one gang's machine knows: its records, which of them changed, and the questions all of its parts ask."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core import events as ev
from phalanx.core.states import check_attempt, move_assignment, move_member, state_of
from phalanx.model.cluster import Assignment, Attempt, Member, MemberState, Phase

GONE = (MemberState.EXITED, MemberState.RELEASED)
ALIVE = (MemberState.STARTING, MemberState.HELLO, MemberState.IMPORTING, MemberState.READY)


@dataclass(frozen=True)
class GangPolicy:
    """Times in milliseconds."""

    finish_window_ms: int = 10_000
    grace_ms: int = 30_000
    linger_ms: int = 3_000          # for a rank that waits for inputs to leave by the kill switch
    prepare_timeout_ms: int = 600_000   # from placement until every node has prepared its rank; 0: none
    hello_timeout_ms: int = 300_000     # from the start of the containers to the first barrier; 0: none
    in_step: bool = True            # an input is open until every rank has put it; else each rank goes on by itself


class GangRecords:
    """An assignment with its members and attempts. `changed` names those to persist."""

    def __init__(self, assignment: Assignment, members: list[Member], attempts: list[Attempt], policy: GangPolicy) -> None:
        self.assignment = assignment
        self.members = sorted(members, key=lambda member: member.rank)
        self.policy = policy
        self.open = sorted((a for a in attempts if not a.decided), key=lambda attempt: attempt.position)
        # Decided after the finish window while ranks still ran them: those ranks are busy until they put, and must be interrupted.
        self.overdue = [a for a in attempts if a.decided and len(a.results) < assignment.size]
        self.next_position = max((a.position for a in attempts), default=0) + 1
        self.changed: dict[int, Assignment | Member | Attempt] = {}
        self._gone = sum(member.state in GONE for member in self.members)   # counted: it is asked twice for every event of every rank
        self._attempts = {(a.input_id, a.attempt): state_of(a, assignment.size) for a in attempts}

    @property
    def all_gone(self) -> bool:
        """Is the end of every rank confirmed? Its verdict fell then."""
        return self._gone == len(self.members)

    @property
    def verdict_fell(self) -> bool:
        return self.assignment.phase == Phase.ENDING and self.all_gone

    def is_busy(self, rank: int) -> bool:
        """Does this rank run an input?"""
        return any(rank in a.fetched and rank not in a.results for a in (*self.open, *self.overdue))

    def is_beginning(self, rank: int) -> bool:
        """In import or @enter? A cluster's rank is READY before @enter, and through it when it asks for inputs."""
        member = self.members[rank]
        in_enter = member.state == MemberState.READY and not member.asked and not self.is_busy(rank)
        return member.state == MemberState.IMPORTING or in_enter

    def name(self, rank: int) -> str:
        """For a sentence that begins with it."""
        node_id = self.members[rank].node_id
        return f"rank {rank} on node {node_id}" if self.assignment.clustered else f"the container on node {node_id}"

    def attempt(self, input_id: str) -> Attempt | None:
        """The open attempt at an input."""
        return next((a for a in self.open if a.input_id == input_id), None)

    def on(self, rank: int) -> str:
        """Where, for a sentence about a cluster; a plain function has one place only."""
        return f" on rank {rank} (node {self.members[rank].node_id})" if self.assignment.clustered else ""

    # ------------------------------------------------------------ changes

    def close(self, attempt: Attempt, decision: ev.Decide | ev.Requeue) -> ev.Decide | ev.Requeue:
        attempt.decided = True
        self.open.remove(attempt)
        self.touch(attempt)
        return decision

    def phase(self, to: Phase) -> None:
        move_assignment(self.assignment, to)
        self.touch(self.assignment)

    def move(self, member: Member, to: MemberState) -> None:
        was_gone = member.state in GONE
        move_member(member, to)
        self._gone += (to in GONE) - was_gone
        self.touch(member)

    def touch(self, record: Assignment | Member | Attempt) -> None:
        if isinstance(record, Attempt):
            self._check(record)
        self.changed[id(record)] = record

    def _check(self, attempt: Attempt) -> None:
        key, now = (attempt.input_id, attempt.attempt), state_of(attempt, self.assignment.size)
        check_attempt(attempt, self._attempts.get(key, now), now)
        self._attempts[key] = now
