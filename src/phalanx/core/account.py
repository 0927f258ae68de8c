"""What each rank was doing when its gang failed: a line each, under the first cause."""

from __future__ import annotations

import signal

from phalanx.core.gang_records import GangRecords
from phalanx.model.cluster import Failure, Member, MemberState

_BEFORE_INPUTS = {
    MemberState.PREPARING: "being prepared",
    MemberState.PREPARED: "prepared, not started",
    MemberState.STARTING: "starting",
    MemberState.HELLO: "waiting for the other ranks to start",
    MemberState.IMPORTING: "importing",
}


def doing(gang: GangRecords, member: Member) -> str:
    """Said at the moment when the ranks are told to stop; later all of them only end."""
    state = MemberState(member.state)
    if state in (MemberState.EXITED, MemberState.RELEASED):
        return end_of(member)
    if state in _BEFORE_INPUTS:
        return _BEFORE_INPUTS[state]
    running = [a for a in (*gang.open, *gang.overdue) if member.rank in a.fetched and member.rank not in a.results]
    if running:
        return "running the input" if len(running) == 1 else f"running {len(running)} inputs"
    if gang.is_beginning(member.rank):
        importing = any(other.state == MemberState.IMPORTING for other in gang.members)
        return "waiting for the other ranks to import" if importing else "in @enter"
    put = [attempt.results[member.rank] for attempt in gang.open if member.rank in attempt.results]
    if put:
        return "done with the input" if put[-1].status == "ok" else "running the input"
    return "waiting for inputs"


def others(gang: GangRecords, verdict: Failure) -> list[str]:
    """One line for each rank but the verdict's own: "rank 1 (node-2): running the input"."""
    return [f"rank {m.rank} ({m.node_id}): {_story(gang, m)}" for m in gang.members if m.rank != verdict.rank]


def end_of(member: Member) -> str:
    """How a rank ended."""
    if member.node_lost:
        return "node lost"
    if member.oom_killed:
        return "ran out of memory"
    if member.exit_signal:
        return f"killed by signal {member.exit_signal} ({signal_name(member.exit_signal)})"
    return f"exited with code {member.exit_code}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _story(gang: GangRecords, member: Member) -> str:
    if not member.doing:
        return end_of(member)
    reported = [f.sentence.removeprefix(gang.name(member.rank) + " ") for f in gang.assignment.failures if f.rank == member.rank]
    put = [a.results[member.rank] for a in gang.open if member.rank in a.results]
    reported += [f"raised {result.sentence}" for result in put if result.status == "failed" and "KeyboardInterrupt" not in result.sentence]
    return f"{member.doing}, then {reported[0]}" if reported and member.doing != end_of(member) else member.doing
