"""The clocks of a gang: prepare, hello, start-up, one for each attempt; and ranks that fetch by themselves."""

from __future__ import annotations

import signal

import pytest

from phalanx.core import events as ev
from phalanx.core.gang import GangPolicy
from phalanx.model.cluster import Cause, Phase
from tests.core.stories import FAILED, OK, Story


def test_an_attempts_clock_begins_when_the_last_rank_has_the_input() -> None:
    story = Story(3)
    story.gang.assignment.timeout_ms = 5_000
    story.running()
    first = story.tell(ev.Delivered("in-1", 1), ev.Fetched(0, "in-1"), ev.Fetched(2, "in-1"))
    assert ev.SetTimer("timeout", 5_000, "in-1", 1) not in first
    assert story.tell(ev.Fetched(1, "in-1")) == [ev.SetTimer("timeout", 5_000, "in-1", 1)]


def test_a_rank_that_never_takes_the_input_does_not_hold_the_attempt_for_ever() -> None:
    story = Story(2)
    story.gang.assignment.timeout_ms = 5_000
    story.running()
    story.tell(ev.Delivered("in-1", 1), ev.Fetched(0, "in-1"))
    story.tell(ev.TimerFired("take", "in-1", 1), after_ms=5_000)
    story.exit_all()
    decided = story.asked(ev.Decide)[0]
    assert isinstance(decided, ev.Decide) and decided.failure is not None
    assert decided.failure.cause == Cause.TIMEOUT and decided.failure.sentence.startswith("rank 1 on node node-1 did not take the input")


def test_a_rank_still_in_enter_has_the_clock_of_the_start_not_this_one() -> None:
    story = Story(2)
    story.gang.assignment.timeout_ms = 5_000
    story.prepared()
    story.tell(*(ev.PeersReached(r) for r in story.ranks), *(ev.Hello(r) for r in story.ranks), *(ev.ClusterHello(r) for r in story.ranks))
    story.tell(ev.AsksForInputs(0), ev.Delivered("in-1", 1), ev.Fetched(0, "in-1"))
    assert story.tell(ev.TimerFired("take", "in-1", 1), after_ms=5_000) == [ev.SetTimer("take", 5_000, "in-1", 1)]
    assert story.gang.assignment.phase == Phase.RUNNING


def test_nodes_that_are_late_to_prepare_are_all_blamed_and_the_program_is_not() -> None:
    story = Story(3)
    answers = story.tell(ev.Placed(), ev.Prepared(1))
    assert ev.SetTimer("prepare", 600_000) in answers
    story.tell(ev.TimerFired("prepare"), after_ms=600_000)
    verdict = story.gang.assignment.verdict
    assert verdict is not None and verdict.cause == Cause.REFUSED and not verdict.user_fault
    assert verdict.sentence == "rank 0 on node node-0 was not prepared within 600 s"
    assert verdict.others[0] == "rank 1 (node-1): prepared, not started"
    assert verdict.others[1] == "rank 2 (node-2): being prepared, then was not prepared within 600 s"
    assert story.gang.blamed_nodes == ("node-0", "node-2") and story.asked(ev.FailWaiting) == []


def test_a_container_that_never_says_hello_is_the_nodes_fault() -> None:
    story = Story(2)
    assert ev.SetTimer("hello", 300_000) in story.prepared()
    story.tell(ev.Hello(0), *(ev.PeersReached(r) for r in story.ranks))
    answers = story.tell(ev.TimerFired("hello"), after_ms=300_000)
    assert [a.signal for a in answers if isinstance(a, ev.StopRank)] == [signal.SIGKILL, signal.SIGKILL]
    story.tell(*(ev.Exited(r, story.now + 9, signal=9) for r in story.ranks))
    verdict = story.gang.assignment.verdict
    assert verdict is not None and verdict.sentence == "rank 1 on node node-1 was started and did not say hello within 300 s"
    assert not verdict.user_fault and story.gang.blamed_nodes == ("node-1",)


def test_timers_of_a_start_that_went_well_change_nothing() -> None:
    story = Story(2).running()
    assert story.tell(ev.TimerFired("prepare"), ev.TimerFired("hello"), ev.TimerFired("startup")) == []


def test_nothing_runs_out_where_the_fleets_owner_set_no_limit() -> None:
    story = Story(2, policy=GangPolicy(prepare_timeout_ms=0, hello_timeout_ms=0)).working()
    assert story.asked(ev.SetTimer) == []


def test_the_grace_of_a_function_goes_with_every_interrupt() -> None:
    story = Story(2, policy=GangPolicy(grace_ms=5_000)).working()
    answers = story.tell(ev.StopAsked(Cause.PREEMPTED, "its nodes were wanted"))
    assert {(a.signal, a.grace_ms) for a in answers if isinstance(a, ev.StopRank)} == {(signal.SIGINT, 5_000)}
    story.exit_all(code=130)
    assert story.asked(ev.Requeue) == [ev.Requeue("in-1", "its nodes were wanted")]


# ---------------------------------------------------------------- an agent that is back


def test_a_rank_that_leaves_by_itself_is_not_interrupted_because_its_agent_was_away() -> None:
    story = Story(2).running()
    story.tell(ev.StopAsked(Cause.STOPPED))
    assert story.gang.again(1, story.now + 100) == []
    again = story.gang.again(1, story.now + story.gang.policy.linger_ms + 1)
    assert [(a.rank, a.signal) for a in again if isinstance(a, ev.StopRank)] == [(1, signal.SIGINT)]


@pytest.mark.parametrize(("busy", "number"), [(True, signal.SIGINT), (False, signal.SIGKILL)], ids=["works", "starts"])
def test_a_rank_that_was_told_to_stop_is_told_again_the_same(busy: bool, number: int) -> None:
    story = Story(2)
    if busy:
        story.working()
    else:
        story.prepared()
    first = [a for a in story.tell(ev.StopAsked(Cause.STOPPED)) if isinstance(a, ev.StopRank) and a.rank == 1]
    assert story.gang.again(1, story.now + 1) == first and first[0].signal == number


def test_what_remains_on_a_node_survives_a_restart_of_the_server() -> None:
    story = Story(2).working()
    story.tell(ev.StopAsked(Cause.STOPPED))
    story.exit_all()
    story.tell(ev.Released(1, "process 41 in state D"))
    story.again_from_rows()
    assert story.tell(ev.Released(0)) == [ev.GangOver({1: "process 41 in state D"})]


# ---------------------------------------------------------------- free-running


def free(size: int = 2) -> Story:
    return Story(size, policy=GangPolicy(in_step=False)).running()


def test_a_free_running_rank_takes_its_next_input_while_others_still_work() -> None:
    story = free()
    story.tell(ev.Delivered("in-1", 1), ev.Fetched(0, "in-1"), ev.Fetched(1, "in-1"), ev.Put(0, "in-1", 1, OK))
    assert story.gang.room(0) == 1 and story.gang.room(1) == 0
    story.tell(ev.Delivered("in-2", 1), ev.Fetched(0, "in-2"))
    assert [a.input_id for a in story.gang.open] == ["in-1", "in-2"]
    offered = story.gang.offer(1)
    assert offered is not None and offered.input_id == "in-2", "every rank gets every input, in one order"


def test_a_free_running_call_ends_when_every_rank_has_put_it_and_no_window_cuts_the_slow_ones_off() -> None:
    story = free()
    answers = story.tell(ev.Delivered("in-1", 1), *(ev.Fetched(r, "in-1") for r in story.ranks), ev.Put(0, "in-1", 1, OK))
    assert not [a for a in answers if isinstance(a, ev.SetTimer) and a.name == "finish"]
    assert ev.Decide("in-1", 1, "ok", OK) in story.tell(ev.Put(1, "in-1", 1, OK), after_ms=60_000)


def test_a_failure_of_a_free_running_rank_fails_its_input_and_the_others_run_again() -> None:
    story = free()
    story.tell(ev.Delivered("in-1", 1), *(ev.Fetched(r, "in-1") for r in story.ranks), ev.Put(0, "in-1", 1, OK))
    story.tell(ev.Delivered("in-2", 1), ev.Fetched(0, "in-2"), ev.Put(1, "in-1", 1, FAILED))
    ends = [i for i in story.exit_all() if isinstance(i, ev.Decide | ev.Requeue)]
    assert [(type(i), i.input_id) for i in ends] == [(ev.Decide, "in-1"), (ev.Requeue, "in-2")]
