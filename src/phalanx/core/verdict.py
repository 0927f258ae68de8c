"""Which of several reports is the first cause (design rule 4), and what an exit status says."""

from __future__ import annotations

import signal

from phalanx.core.events import Exited
from phalanx.model.cluster import Assignment, Cause, Failure, Member

_ORDER = tuple(Cause)


def first_cause(assignment: Assignment) -> Failure:
    """The verdict over all reports: by the order of causes, then by time, then by rank."""
    if not assignment.failures:
        if assignment.verdict is not None and assignment.verdict.cause == assignment.stopping:
            return assignment.verdict   # it was being let go, and why was said then
        return Failure(assignment.stopping or Cause.DONE, 0, assignment.stopped_ms, user_fault=False)
    # Somebody's stop explains all that came after it: ranks that then die badly are its consequence.
    stop = next((f for f in assignment.failures if f.cause in (Cause.STOPPED, Cause.CANCELLED, Cause.PREEMPTED)), None)
    if stop is not None and stop is assignment.failures[0]:
        return stop
    return min(assignment.failures, key=lambda f: (_ORDER.index(Cause(f.cause)), f.at_ms, f.rank))


def exit_failure(event: Exited, member: Member, assignment: Assignment, has_unfinished: bool) -> Failure | None:
    """The failure that an exit reports, or None where it is what was asked for, or the echo of a failure the rank reported itself."""
    where = f"rank {event.rank} on node {member.node_id}" if assignment.clustered else f"the container on node {member.node_id}"
    if event.never_started:
        return Failure(Cause.REFUSED, event.rank, event.at_ms, f"{where} could not be started: {event.sentence}", user_fault=False)
    if event.oom_killed:
        return Failure(Cause.OOM, event.rank, event.at_ms, f"{where} ran out of memory: {event.sentence}")
    stopped = bool(assignment.stopping)
    if stopped and event.at_ms >= assignment.stopped_ms:
        return None   # our own interrupt or kill
    if event.unseen:
        return Failure(Cause.NODE, event.rank, event.at_ms, f"{where} was lost: {event.sentence}", user_fault=False)
    if any(f.rank == event.rank and f.cause == Cause.EXCEPTION for f in assignment.failures):
        return None
    if event.signal:
        name = _signal_name(event.signal)
        sentence = f"{where} was killed by signal {event.signal} ({name}), which was not an out-of-memory kill"
        return Failure(Cause.SIGNAL, event.rank, event.at_ms, sentence)
    if event.code:
        return Failure(Cause.EXIT, event.rank, event.at_ms, f"{where} exited with code {event.code}")
    if has_unfinished:
        return Failure(Cause.EXIT, event.rank, event.at_ms, f"{where} exited with code 0 before it returned a result")
    if member.started_ms == 0 and not stopped:
        return Failure(Cause.EXIT, event.rank, event.at_ms, f"{where} exited with code 0 before it said hello")
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


