"""Inputs of a running gang: delivered in step, put by every rank, decided, cancelled, out of time (design rule 5)."""

from __future__ import annotations

from phalanx.core import events as ev
from phalanx.core.gang_end import drain_timer, fail, stop, stop_asked
from phalanx.core.gang_records import GangRecords
from phalanx.core.verdict import exception, explains_echo
from phalanx.model.cluster import Attempt, Cause, Failure, Phase, RankResult


def is_new_to(attempt: Attempt, rank: int) -> bool:
    """May this rank still fetch it?"""
    return rank not in attempt.fetched and rank not in attempt.results and not attempt.cancelling


def room(gang: GangRecords, rank: int) -> int:
    """How many more inputs may be delivered, for a rank that has fetched all there are.

    In step, an input counts until every rank has put it; free-running, for each rank only until it has put it itself.
    """
    if gang.assignment.phase != Phase.RUNNING or gang.assignment.draining:
        return 0
    counted = gang.open if gang.policy.in_step else [attempt for attempt in gang.open if rank not in attempt.results]
    return max(gang.assignment.max_inputs - len(counted), 0)


def delivered(gang: GangRecords, input_id: str, attempt: int, now_ms: int) -> list[ev.Instruction]:
    delivery = Attempt(input_id, attempt, gang.assignment.assignment, gang.next_position)
    gang.next_position += 1
    gang.open.append(delivery)
    gang.touch(delivery)
    gang.assignment.idle_since_ms = 0
    gang.assignment.first_input_ms = gang.assignment.first_input_ms or now_ms
    gang.touch(gang.assignment)
    return [ev.WakeRanks()]


def fetched(gang: GangRecords, rank: int, input_id: str) -> list[ev.Instruction]:
    attempt = gang.attempt(input_id)
    if attempt is None or rank in attempt.fetched:
        return []
    attempt.fetched.append(rank)
    gang.touch(attempt)
    if not gang.assignment.timeout_ms:
        return []
    if len(attempt.fetched) == gang.assignment.size:    # the clock of an attempt begins when the last rank has it
        return [ev.SetTimer("timeout", gang.assignment.timeout_ms, input_id, attempt.attempt)]
    return [_take_timer(gang, attempt)] if len(attempt.fetched) == 1 else []


def put(gang: GangRecords, event: ev.Put, now_ms: int) -> list[ev.Instruction]:
    for overdue in gang.overdue:
        if overdue.input_id == event.input_id and event.attempt in (0, overdue.attempt):
            overdue.results.setdefault(event.rank, event.result)
            gang.touch(overdue)     # or a restart takes the rank for busy, and interrupts what it runs by then
    attempt = gang.attempt(event.input_id)
    if attempt is None or event.rank in attempt.results or event.attempt not in (0, attempt.attempt):
        return []
    attempt.results[event.rank] = event.result
    gang.touch(attempt)
    if event.result.status == "failed" and gang.assignment.clustered and not attempt.cancelling:
        return _failed(gang, event, now_ms)
    if gang.assignment.phase == Phase.ENDING:
        return []   # the verdict looks at it when every rank is confirmed gone
    if len(attempt.results) == gang.assignment.size:
        return _decide_complete(gang, attempt, now_ms)
    if event.rank == 0 and event.result.status == "ok" and not attempt.cancelling and gang.policy.in_step:
        return [ev.SetTimer("finish", gang.policy.finish_window_ms, event.input_id, attempt.attempt)]
    return []


def _failed(gang: GangRecords, event: ev.Put, now_ms: int) -> list[ev.Instruction]:
    """One rank's failure is the call's. Once ranks are being stopped, exceptions are mostly the work of that."""
    failure = exception(gang, event.rank, now_ms, event.result.sentence, event.result.result, event.input_id)
    if gang.assignment.phase == Phase.ENDING and not explains_echo(gang, failure):
        return []
    return fail(gang, failure, now_ms)


def cancel(gang: GangRecords, input_id: str, terminate: bool, now_ms: int) -> list[ev.Instruction]:
    attempt = gang.attempt(input_id)
    if attempt is None or attempt.cancelling:
        return []
    attempt.cancelling = True
    gang.touch(attempt)
    if terminate:
        return stop_asked(gang, Cause.CANCELLED, "the call was cancelled", now_ms)
    for member in gang.members:   # a rank that has not taken it will not
        if member.rank not in attempt.fetched and member.rank not in attempt.results:
            attempt.results[member.rank] = RankResult("terminated")
    if len(attempt.results) == gang.assignment.size:
        return _decide_complete(gang, attempt, now_ms)
    running = tuple(r for r in attempt.fetched if r not in attempt.results)
    return [ev.CancelOnRanks(input_id, running), ev.SetTimer("cancel", gang.policy.grace_ms, input_id, attempt.attempt)]


def timer(gang: GangRecords, event: ev.TimerFired, now_ms: int) -> list[ev.Instruction]:
    """A clock of one attempt; one of an earlier attempt at the same input changes nothing."""
    attempt = gang.attempt(event.input_id)
    if attempt is None or attempt.attempt != event.attempt or gang.assignment.phase != Phase.RUNNING:
        return []
    if event.name == "timeout":
        return _timed_out(gang, attempt, now_ms)
    if event.name == "take":
        return _take_over(gang, attempt, now_ms)
    if event.name == "cancel":
        return stop(gang, Cause.CANCELLED, now_ms)
    if event.name == "finish" and attempt.results.get(0) is not None and not attempt.cancelling:
        decision = ev.Decide(attempt.input_id, attempt.attempt, "ok", attempt.results[0])
        gang.overdue.append(attempt)
        return [gang.close(attempt, decision), *stop(gang, Cause.RELEASED, now_ms)]
    return []


def _take_timer(gang: GangRecords, attempt: Attempt) -> ev.SetTimer:
    return ev.SetTimer("take", gang.assignment.timeout_ms, attempt.input_id, attempt.attempt)


def _take_over(gang: GangRecords, attempt: Attempt, now_ms: int) -> list[ev.Instruction]:
    """A rank that hangs before it takes an input which others have: no clock of the attempt runs yet, so this one does."""
    missing = [rank for rank in range(gang.assignment.size) if is_new_to(attempt, rank)]
    if not missing:
        return []
    if any(gang.is_beginning(rank) or gang.is_busy(rank) for rank in missing):
        return [_take_timer(gang, attempt)]     # @enter has its own clock, and so has what it runs
    rank = missing[0]
    sentence = f"{gang.name(rank)} did not take the input within {gang.assignment.timeout_ms / 1000:g} s of the first rank that did"
    return fail(gang, Failure(Cause.TIMEOUT, rank, now_ms, sentence, input_id=attempt.input_id), now_ms)


def _timed_out(gang: GangRecords, attempt: Attempt, now_ms: int) -> list[ev.Instruction]:
    """One clock per attempt, from its delivery to the last rank until every rank has put it."""
    late = next((rank for rank in range(gang.assignment.size) if rank not in attempt.results), 0)
    sentence = f"the input ran longer than its timeout of {gang.assignment.timeout_ms / 1000:g} s{gang.on(late)}"
    return fail(gang, Failure(Cause.TIMEOUT, late, now_ms, sentence, input_id=attempt.input_id), now_ms)


def _decide_complete(gang: GangRecords, attempt: Attempt, now_ms: int) -> list[ev.Instruction]:
    worst = next((r for r in attempt.results.values() if r.status != "ok"), None)
    leader = attempt.results[0]
    decision = ev.Decide(attempt.input_id, attempt.attempt, (worst or leader).status, worst or leader)
    return [gang.close(attempt, decision), *_after_decision(gang, now_ms)]


def _after_decision(gang: GangRecords, now_ms: int) -> list[ev.Instruction]:
    if gang.open:
        return [ev.WakeRanks()]
    gang.assignment.idle_since_ms = now_ms
    gang.touch(gang.assignment)
    return [ev.WakeRanks(), ev.BecameIdle(), *drain_timer(gang)]
