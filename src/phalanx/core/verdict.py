"""Which of several reports is the first cause (design rule 4), and what an exit status says."""

from __future__ import annotations

import signal

from phalanx.core.account import signal_name
from phalanx.core.echoes import is_echo
from phalanx.core.events import Exited
from phalanx.core.gang_records import GangRecords
from phalanx.model.cluster import Assignment, Cause, Failure, Member

STOPS = (Cause.STOPPED, Cause.CANCELLED, Cause.PREEMPTED)
CRASH_MS = 2_000    # a rank that crashes so soon after another one's connection error was the cause of it, not stopped by us
RAISE_MS = 100      # and one that raises; later than that it is mostly what our interrupt made of it

TEXT_SHOWN = 2_000  # characters of an exception in sentences; its caller gets the whole of it with the result

_ORDER = tuple(Cause)
# What a process does to itself. Our own signals are SIGINT, SIGTERM and SIGKILL; an interrupt may make NCCL abort, but not crash so.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


def first_cause(assignment: Assignment) -> Failure:
    """The verdict over all reports: by the order of causes, then by time, then by rank."""
    if not assignment.failures:
        if assignment.verdict is not None and assignment.verdict.cause == assignment.stopping:
            return assignment.verdict   # it was being let go, and why was said then
        return Failure(assignment.stopping or Cause.DONE, 0, assignment.stopped_ms, user_fault=False)
    # Somebody's stop explains all that came after it: ranks that then die badly are its consequence.
    stop = next((f for f in assignment.failures if f.cause in STOPS), None)
    if stop is not None and stop is assignment.failures[0]:
        return stop
    return min(assignment.failures, key=lambda f: (_ORDER.index(Cause(f.cause)), f.at_ms, f.rank))


def blamed_nodes(assignment: Assignment, members: list[Member]) -> tuple[str, ...]:
    """The nodes that this end speaks against: lost, or they would not start it. The program's own failures speak against none."""
    against = {f.rank for f in assignment.failures if f.cause in (Cause.NODE, Cause.REFUSED) and not f.user_fault and f.rank >= 0}
    against |= {member.rank for member in members if member.remains}
    return tuple(members[rank].node_id for rank in sorted(against))


def exception(gang: GangRecords, rank: int, now_ms: int, text: str, result: bytes, input_id: str = "") -> Failure:
    """What a rank raised, by its own report. `text`: the exception's repr."""
    echo = gang.assignment.size > 1 and is_echo(text)
    text = text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + "…"
    sentence = f"{gang.name(rank)} raised {text}" if gang.assignment.clustered else text
    return Failure(Cause.COLLECTIVE if echo else Cause.EXCEPTION, rank, now_ms, sentence, result, input_id=input_id)


def explains_echo(gang: GangRecords, failure: Failure) -> bool:
    """Is a rank's exception, reported just after another's connection error stopped all, more than that and no work of our interrupt?"""
    soon = failure.at_ms <= gang.assignment.stopped_ms + RAISE_MS
    own = failure.cause == Cause.EXCEPTION and "KeyboardInterrupt" not in failure.sentence
    return gang.assignment.stopping == Cause.COLLECTIVE and soon and own


def exit_failure(gang: GangRecords, event: Exited, member: Member, has_unfinished: bool) -> Failure | None:
    """The failure that an exit reports, or None where it is what was asked for, or the echo of a failure the rank reported itself."""
    assignment, where = gang.assignment, gang.name(event.rank)
    if event.never_started:
        return Failure(Cause.REFUSED, event.rank, event.at_ms, f"{where} could not be started: {event.sentence}", user_fault=False)
    if event.oom_killed:
        return Failure(Cause.OOM, event.rank, event.at_ms, f"{where} ran out of memory: {event.sentence}")
    if _is_ours(event, assignment, gang.is_busy(event.rank)):
        return None
    if event.unseen:
        return Failure(Cause.NODE, event.rank, event.at_ms, f"{where} was lost: {event.sentence}", user_fault=False)
    if any(f.rank == event.rank and f.cause in (Cause.EXCEPTION, Cause.COLLECTIVE) for f in assignment.failures):
        return None
    if event.signal:
        name = signal_name(event.signal)
        sentence = f"{where} was killed by signal {event.signal} ({name}), which was not an out-of-memory kill"
        return Failure(Cause.SIGNAL, event.rank, event.at_ms, sentence)
    if event.code:
        return Failure(Cause.EXIT, event.rank, event.at_ms, f"{where} exited with code {event.code}")
    if has_unfinished:
        return Failure(Cause.EXIT, event.rank, event.at_ms, f"{where} exited with code 0 before it returned a result")
    if member.started_ms == 0 and not assignment.stopping:
        return Failure(Cause.EXIT, event.rank, event.at_ms, f"{where} exited with code 0 before it said hello")
    return None


def _is_ours(event: Exited, assignment: Assignment, busy: bool) -> bool:
    """Did our own interrupt or kill end it? Its node knows whether it was told; a rank with no input open leaves without being told."""
    if not assignment.stopping:
        return False
    if busy and event.told is not None:
        return event.told
    if event.at_ms < assignment.stopped_ms:
        return False
    crashed = event.signal in _CRASHES and assignment.stopping == Cause.COLLECTIVE
    return not (crashed and event.at_ms <= assignment.stopped_ms + CRASH_MS)
