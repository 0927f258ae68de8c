"""How a gang ends: the first failure or a stop tells every rank, the verdict falls when all are gone, and nothing remains (rule 4)."""

from __future__ import annotations

import signal

from phalanx.core import events as ev
from phalanx.core.account import doing, others
from phalanx.core.gang_records import ALIVE, GangRecords
from phalanx.core.verdict import blamed_nodes, exception, exit_failure, first_cause
from phalanx.model.cluster import Attempt, Cause, Failure, Member, MemberState, Phase

# Meant another input, or the container itself: this one runs again elsewhere. What its user is told, where the verdict says it not.
_OTHERS_WISH = {
    Cause.STOPPED: "",
    Cause.CANCELLED: "another call in its cluster was cancelled, and the cluster stopped for it",
    Cause.RELEASED: "rank 0 had returned another input of its cluster, and the cluster was let go",
}
_USER_CAUSES = (Cause.EXCEPTION, Cause.COLLECTIVE, Cause.TIMEOUT, Cause.OOM, Cause.SIGNAL, Cause.EXIT, Cause.REFUSED)


def died_early(gang: GangRecords) -> bool:
    """Did user code fail before it took an input? Not where it was let go: what waits was not for it."""
    verdict = gang.assignment.verdict
    never_ran = gang.next_position == 1 and not gang.assignment.draining
    return gang.all_gone and never_ran and verdict is not None and verdict.user_fault and verdict.cause in _USER_CAUSES


# ---------------------------------------------------------------- being stopped


def drain(gang: GangRecords, cause: str, sentence: str, now_ms: int) -> list[ev.Instruction]:
    """Finish what is open, take no more."""
    if gang.assignment.draining or gang.assignment.phase in (Phase.ENDING, Phase.ENDED):
        return []
    if gang.assignment.phase != Phase.RUNNING:
        return stop_asked(gang, cause, sentence, now_ms)
    gang.assignment.draining = True
    gang.assignment.verdict = Failure(cause, 0, now_ms, sentence, user_fault=False)
    gang.touch(gang.assignment)
    return [ev.WakeRanks(), *drain_timer(gang)]


def drain_timer(gang: GangRecords) -> list[ev.Instruction]:
    """A gang that takes no more inputs and has none open has this long to leave by the kill switch."""
    draining = gang.assignment.draining and not gang.open and gang.assignment.phase == Phase.RUNNING
    return [ev.SetTimer("drain", gang.policy.grace_ms)] if draining else []


def drain_over(gang: GangRecords, now_ms: int) -> list[ev.Instruction]:
    if gang.assignment.phase == Phase.ENDED or not gang.assignment.draining or gang.assignment.stopping:
        return []
    return stop(gang, _drained_for(gang, Cause.IDLE), now_ms)


def stop_asked(gang: GangRecords, cause: str, sentence: str, now_ms: int) -> list[ev.Instruction]:
    if gang.assignment.phase in (Phase.ENDING, Phase.ENDED):
        return []
    gang.assignment.failures.append(Failure(cause, -1, now_ms, sentence, user_fault=False))
    return stop(gang, cause, now_ms)


def fail(gang: GangRecords, failure: Failure, now_ms: int, *more: Failure) -> list[ev.Instruction]:
    """A report of a failure, or of several at once: the first stops all ranks, every one counts for the verdict."""
    if gang.assignment.phase == Phase.ENDED:
        return []
    gang.assignment.failures += [failure, *more]
    gang.touch(gang.assignment)
    if gang.assignment.phase == Phase.ENDING:
        return _end_if_all_gone(gang, now_ms)
    return stop(gang, failure.cause, now_ms)


def task_failed(gang: GangRecords, rank: int, result: bytes, sentence: str, now_ms: int) -> list[ev.Instruction]:
    """The user's module, or @enter, raised."""
    return fail(gang, exception(gang, rank, now_ms, sentence, result), now_ms)


def stop(gang: GangRecords, cause: str, now_ms: int) -> list[ev.Instruction]:
    """Tell every rank to stop, at once."""
    gang.phase(Phase.ENDING)
    gang.assignment.stopping = cause
    gang.assignment.stopped_ms = now_ms
    instructions: list[ev.Instruction] = [ev.WakeRanks()]
    for member in gang.members:
        member.doing = doing(gang, member)
        gang.touch(member)
    for member in gang.members:
        if member.state in (MemberState.PREPARING, MemberState.PREPARED):
            gang.move(member, MemberState.EXITED)   # never started: Release undoes the preparation
    alive = [member for member in gang.members if member.state in ALIVE]
    instructions += [stop_rank(gang, member) for member in alive if not lingers(gang, member)]
    if any(lingers(gang, member) for member in alive):
        instructions.append(ev.SetTimer("linger", gang.policy.linger_ms))
    return instructions + _end_if_all_gone(gang, now_ms)


def stop_rank(gang: GangRecords, member: Member) -> ev.StopRank:
    """An interrupt with the function's grace; a kill where there is no user code yet that could use it."""
    before_user_code = member.state in (MemberState.STARTING, MemberState.HELLO)
    importing = any(other.state == MemberState.IMPORTING for other in gang.members)     # the second barrier holds the ranks that have
    if before_user_code or (gang.assignment.clustered and importing):
        return ev.StopRank(member.rank, signal.SIGKILL, 0, gang.assignment.stopping)
    return ev.StopRank(member.rank, signal.SIGINT, gang.policy.grace_ms, gang.assignment.stopping)


def lingers(gang: GangRecords, member: Member) -> bool:
    """A rank with nothing open leaves by the kill switch and has a while for it; what imports, or works, is told at once."""
    idle = member.state in ALIVE and not gang.is_busy(member.rank)
    return idle and stop_rank(gang, member).signal == signal.SIGINT


def linger_over(gang: GangRecords) -> list[ev.Instruction]:
    """Ranks that waited for inputs had their chance to leave by the kill switch."""
    if gang.assignment.phase != Phase.ENDING:
        return []
    return [stop_rank(gang, member) for member in gang.members if member.state in ALIVE]


def _drained_for(gang: GangRecords, otherwise: Cause) -> str:
    return gang.assignment.verdict.cause if gang.assignment.verdict else otherwise


# ---------------------------------------------------------------- being gone


def exited(gang: GangRecords, event: ev.Exited, now_ms: int) -> list[ev.Instruction]:
    member = gang.members[event.rank]
    if member.state in (MemberState.EXITED, MemberState.RELEASED):
        return []
    unfinished = [a for a in gang.open if event.rank not in a.results and not a.cancelling]
    member.exit_code, member.exit_signal, member.oom_killed = event.code, event.signal, event.oom_killed
    member.sentence, member.ended_ms = event.sentence, event.at_ms
    gang.move(member, MemberState.EXITED)
    failure = exit_failure(gang, event, member, has_unfinished=bool(unfinished))
    if failure is not None:
        gang.assignment.failures.append(failure)
        gang.touch(gang.assignment)
    if gang.assignment.phase == Phase.ENDING:
        return _end_if_all_gone(gang, now_ms)
    if failure is not None:
        return stop(gang, failure.cause, now_ms)
    # It left by itself with nothing open (single use, stop_fetching_inputs, kill switch): the others follow.
    drained = drain(gang, Cause.DONE, "left by itself", now_ms)
    if all(m.state == MemberState.EXITED for m in gang.members):
        return drained + stop(gang, _drained_for(gang, Cause.DONE), now_ms)
    return drained


def node_lost(gang: GangRecords, rank: int, sentence: str, now_ms: int) -> list[ev.Instruction]:
    member = gang.members[rank]
    if member.node_lost or member.state == MemberState.RELEASED:
        return []
    member.node_lost = True
    gang.touch(member)
    if member.state == MemberState.EXITED:
        return released(gang, rank, "", now_ms) if gang.verdict_fell else []
    member.sentence, member.ended_ms = sentence, now_ms
    gang.move(member, MemberState.EXITED)
    return fail(gang, Failure(Cause.NODE, rank, now_ms, sentence, user_fault=False), now_ms)


def released(gang: GangRecords, rank: int, remains: str, now_ms: int) -> list[ev.Instruction]:
    """Nothing of this rank remains on its node, but what `remains` says."""
    member = gang.members[rank]
    if member.state != MemberState.EXITED or not gang.verdict_fell:
        return []
    member.remains = remains
    gang.move(member, MemberState.RELEASED)
    if any(m.state != MemberState.RELEASED for m in gang.members):
        return []
    gang.phase(Phase.ENDED)
    gang.assignment.ended_ms = now_ms
    return [ev.GangOver({m.rank: m.remains for m in gang.members if m.remains})]


def _end_if_all_gone(gang: GangRecords, now_ms: int) -> list[ev.Instruction]:
    """The verdict, once every member has a confirmed end; its outputs; and everything of the members may go."""
    if any(m.state != MemberState.EXITED for m in gang.members):
        return []
    verdict = first_cause(gang.assignment)
    verdict.others = others(gang, verdict) if gang.assignment.size > 1 else []
    gang.assignment.verdict = verdict
    gang.touch(gang.assignment)
    instructions: list[ev.Instruction] = []
    at_work = _at_work(gang, verdict)
    for attempt in list(gang.open):
        instructions.append(gang.close(attempt, _outcome(gang, attempt, verdict, at_work)))
    if died_early(gang):
        instructions.append(ev.FailWaiting(verdict))
    instructions += [ev.Release(member.rank) for member in gang.members]    # a lost node may be back
    for member in gang.members:
        if member.node_lost:   # nobody is left there to answer
            instructions += released(gang, member.rank, "", now_ms)
    return instructions


def _at_work(gang: GangRecords, verdict: Failure) -> set[str]:
    """The inputs that can be to blame: the one that raised, or those that the rank had and had not put when its process died."""
    if verdict.input_id:
        return {verdict.input_id}
    return {a.input_id for a in gang.open if verdict.rank in a.fetched and verdict.rank not in a.results}


def _outcome(gang: GangRecords, attempt: Attempt, verdict: Failure, at_work: set[str]) -> ev.Decide | ev.Requeue:
    """What an input that was open at the end gets."""
    results = attempt.results
    if len(results) == gang.assignment.size and all(r.status == "ok" for r in results.values()):
        return ev.Decide(attempt.input_id, attempt.attempt, "ok", results[0])
    if attempt.cancelling:
        stopped = verdict if verdict.cause == Cause.STOPPED else None
        return ev.Decide(attempt.input_id, attempt.attempt, "terminated", failure=stopped)
    if verdict.cause in _OTHERS_WISH:
        return ev.Requeue(attempt.input_id, _OTHERS_WISH[Cause(verdict.cause)] or verdict.sentence, charged=False)
    if not verdict.user_fault or (at_work and attempt.input_id not in at_work):
        return ev.Requeue(attempt.input_id, verdict.sentence, blamed_nodes(gang.assignment, gang.members))
    return ev.Decide(attempt.input_id, attempt.attempt, "failed", failure=verdict)
