"""The life of one assignment, told as stories (design rules 1, 2, 4 and 5)."""

from __future__ import annotations

import signal

import pytest

from phalanx.core import events as ev
from phalanx.core.states import MEMBERS, PHASES, IllegalTransition, move_assignment
from phalanx.model.cluster import Cause, MemberState, Phase
from tests.core.stories import FAILED, OK, TERMINATED, Story


def test_nothing_starts_until_every_rank_is_prepared() -> None:
    story = Story(3)
    story.tell(ev.Placed(), ev.Prepared(0), ev.Prepared(2))
    assert story.asked(ev.Start) == []
    answers = story.tell(ev.Prepared(1, "fdaa::1", "10.0.0.1"))
    assert [a for a in answers if isinstance(a, ev.Start)] == [ev.Start(0), ev.Start(1), ev.Start(2)]
    assert story.gang.assignment.phase == Phase.STARTING


def test_one_refusal_releases_all_and_charges_nobody() -> None:
    story = Story(3)
    story.tell(ev.Placed(), ev.Prepared(0), ev.PrepareRefused(1, "disk", "no space: need 10 GiB, have 1 GiB on node-1"))
    assert story.asked(ev.Start) == []
    assert story.asked(ev.Release) == [ev.Release(0), ev.Release(1), ev.Release(2)]
    assert story.asked(ev.FailWaiting) == []
    assert story.gang.assignment.verdict is not None and story.gang.assignment.verdict.cause == Cause.REFUSED
    assert story.release_all() == [ev.GangOver({})]


def test_hellos_are_answered_only_when_all_said_it_and_reach_their_peers() -> None:
    story = Story(2)
    story.prepared()
    assert story.tell(ev.Hello(0), ev.Hello(1), ev.PeersReached(0)) == []
    assert story.gang.assignment.phase == Phase.STARTING
    assert story.tell(ev.PeersReached(1))[0] == ev.AnswerHellos()
    assert story.gang.assignment.phase == Phase.RUNNING


def test_peers_are_checked_pairwise_up_to_sixteen_and_in_a_ring_above() -> None:
    pairwise, ring = Story(16), Story(17)
    for story, expected in ((pairwise, 30), (ring, 2)):
        story.prepared()
        checks = [c for c in story.asked(ev.CheckPeers) if isinstance(c, ev.CheckPeers)]
        assert [len(check.addresses) for check in checks] == [expected] * story.gang.assignment.size
    last = ring.asked(ev.CheckPeers)[-1]
    assert isinstance(last, ev.CheckPeers) and last.addresses == ("fdaa::0", "10.0.0.0")


def test_an_unreachable_peer_is_the_nodes_fault_and_names_the_address() -> None:
    story = Story(2)
    story.prepared()
    story.tell(ev.PeersReached(1, ("fdaa::0",)))
    assert story.gang.assignment.phase == Phase.ENDING
    failure = story.gang.assignment.failures[0]
    assert failure.cause == Cause.NODE and "fdaa::0" in failure.sentence and not failure.user_fault


def test_a_rank_stopped_before_user_code_is_killed_not_interrupted() -> None:
    story = Story(2)
    story.prepared()
    answers = story.tell(ev.StopAsked(Cause.STOPPED))
    assert [a.signal for a in answers if isinstance(a, ev.StopRank)] == [signal.SIGKILL, signal.SIGKILL]


def test_all_ranks_succeed_and_the_caller_gets_rank_0s_result() -> None:
    story = Story(2).working()
    story.tell(ev.Put(1, "in-1", 1, TERMINATED.__class__("ok", b"rank 1")))
    answers = story.tell(ev.Put(0, "in-1", 1, OK))
    assert ev.Decide("in-1", 1, "ok", OK) in answers
    assert ev.BecameIdle() in answers and story.gang.assignment.phase == Phase.RUNNING


def test_rank_0_alone_succeeds_and_the_others_are_released_after_the_window() -> None:
    story = Story(2).working()
    assert story.tell(ev.Put(0, "in-1", 1, OK)) == [ev.SetTimer("finish", 10_000, "in-1", 1)]
    answers = story.tell(ev.TimerFired("finish", "in-1", 1), after_ms=10_000)
    assert ev.Decide("in-1", 1, "ok", OK) in answers
    assert [a.rank for a in answers if isinstance(a, ev.StopRank)] == [1]
    story.exit_all(code=1)   # what a released rank exits with is nobody's failure
    assert story.gang.assignment.verdict is not None and story.gang.assignment.verdict.cause == Cause.RELEASED


def test_a_failure_inside_the_window_fails_the_call() -> None:
    story = Story(2).working()
    story.tell(ev.Put(0, "in-1", 1, OK), ev.Put(1, "in-1", 1, FAILED))
    assert story.asked(ev.Decide) == []          # the verdict waits for every rank's end
    decided = [a for a in story.exit_all() if isinstance(a, ev.Decide)]
    assert [d.status for d in decided] == ["failed"]
    assert decided[0].failure is not None and decided[0].failure.result == b"pickled" and decided[0].failure.rank == 1


def test_case_37_a_rank_that_exits_without_a_word_stops_all_and_is_named() -> None:
    story = Story(4).working()
    answers = story.tell(ev.Exited(2, story.now, code=1))
    assert sorted(a.rank for a in answers if isinstance(a, ev.StopRank)) == [0, 1, 3]
    story.tell(*(ev.Exited(r, story.now, signal=2) for r in (0, 1, 3)))
    decided = story.asked(ev.Decide)[0]
    assert isinstance(decided, ev.Decide) and decided.failure is not None
    assert "rank 2" in decided.failure.sentence and "code 1" in decided.failure.sentence and "node-2" in decided.failure.sentence


def test_a_connection_error_is_not_blamed_when_another_rank_had_died_before() -> None:
    """Rank 0 reports a reset connection; rank 1's exit, earlier by its agent's clock, is confirmed only later."""
    story = Story(2).working()
    died_at = story.now
    story.tell(ev.Put(0, "in-1", 1, FAILED))
    story.tell(ev.Exited(1, died_at, code=3))
    story.tell(ev.Exited(0, story.now + 5))
    decided = story.asked(ev.Decide)[0]
    assert isinstance(decided, ev.Decide) and decided.failure is not None
    assert decided.failure.cause == Cause.EXIT and decided.failure.rank == 1


@pytest.mark.parametrize(
    ("event", "cause", "words"),
    [
        (ev.Exited(1, 0, signal=9, oom_killed=True, sentence="limit 128 MiB, peak 128 MiB"), Cause.OOM, "limit 128 MiB"),
        (ev.Exited(1, 0, signal=9), Cause.SIGNAL, "SIGKILL"),
        (ev.Exited(1, 0, signal=11), Cause.SIGNAL, "SIGSEGV"),
        (ev.Exited(1, 0, code=0), Cause.EXIT, "before it returned a result"),
        (ev.NodeLost(1, "node-1 is gone"), Cause.NODE, "node-1"),
    ],
)
def test_case_96_the_cause_of_a_death_is_told_apart(event: ev.Event, cause: Cause, words: str) -> None:
    story = Story(2).working()
    story.tell(event)
    story.tell(ev.Exited(0, story.now + 1))
    verdict = story.gang.assignment.verdict
    assert verdict is not None and verdict.cause == cause and verdict.rank == 1 and words in verdict.sentence


def test_a_rank_whose_end_nobody_saw_puts_the_input_back_in_the_queue() -> None:
    story = Story(2).working()
    story.tell(ev.Exited(1, story.now, code=255, sentence="the shim was killed", unseen=True), ev.Exited(0, story.now + 5))
    requeued = story.asked(ev.Requeue)
    assert story.asked(ev.Decide) == [] and [r.sentence for r in requeued] == ["rank 1 on node node-1 was lost: the shim was killed"]


def test_a_lost_node_puts_the_input_back_in_the_queue() -> None:
    story = Story(2).working()
    story.tell(ev.NodeLost(1, "node-1 is gone"), ev.Exited(0, story.now + 5))
    assert story.asked(ev.Decide) == [] and story.asked(ev.Requeue) == [ev.Requeue("in-1", "node-1 is gone", ("node-1",))]


def test_a_failing_import_fails_what_waits_with_the_users_exception() -> None:
    story = Story(2)
    story.prepared()
    story.tell(*(ev.PeersReached(r) for r in (0, 1)), ev.Hello(0), ev.Hello(1), ev.TaskFailed(1, b"pickled", "ImportError"))
    story.exit_all()
    failing = story.asked(ev.FailWaiting)[0]
    assert isinstance(failing, ev.FailWaiting) and failing.failure.result == b"pickled"


def test_a_plain_functions_failed_input_does_not_end_its_container() -> None:
    story = Story(1, clustered=False).working()
    answers = story.tell(ev.Put(0, "in-1", 1, FAILED))
    assert ev.Decide("in-1", 1, "failed", FAILED) in answers
    assert story.gang.assignment.phase == Phase.RUNNING and story.gang.room()


def test_inputs_go_to_all_ranks_in_one_order_and_one_is_open_at_a_time() -> None:
    story = Story(2).running()
    assert story.gang.room()
    story.tell(ev.Delivered("in-1", 1), ev.Fetched(0, "in-1"))
    assert not story.gang.room()
    assert story.gang.offer(0) is None           # rank 0 is held: rank 1 has not put in-1
    offered = story.gang.offer(1)
    assert offered is not None and offered.input_id == "in-1"
    story.tell(ev.Fetched(1, "in-1"), ev.Put(0, "in-1", 1, OK))
    assert not story.gang.room()
    story.tell(ev.Put(1, "in-1", 1, OK))
    assert story.gang.room()


def test_concurrent_inputs_are_offered_in_the_same_order_on_every_rank() -> None:
    story = Story(2, max_inputs=2).running()
    story.tell(ev.Delivered("in-1", 1), ev.Delivered("in-2", 1))
    assert not story.gang.room()
    orders = []
    for rank in (0, 1):
        order = []
        while (attempt := story.gang.offer(rank)) is not None:
            order.append(attempt.input_id)
            story.tell(ev.Fetched(rank, attempt.input_id))
        orders.append(order)
    assert orders == [["in-1", "in-2"], ["in-1", "in-2"]]


def test_an_input_that_a_rank_had_put_does_not_pay_when_the_rank_dies_in_the_next() -> None:
    story = Story(2, max_inputs=2).running()
    for input_id in ("in-1", "in-2"):
        story.tell(ev.Delivered(input_id, 1), *(ev.Fetched(r, input_id) for r in story.ranks))
    story.tell(ev.Put(0, "in-1", 1, OK))
    story.tell(ev.Exited(0, story.now, 3))
    story.exit_all()
    assert story.asked(ev.Requeue) == [ev.Requeue("in-1", "rank 0 on node node-0 exited with code 3", ())]
    assert [decided.input_id for decided in story.asked(ev.Decide)] == ["in-2"]


def test_an_input_that_a_rank_had_put_pays_when_nothing_else_was_there_to_kill_it() -> None:
    story = Story(size=2).working("in-1")
    story.tell(ev.Put(0, "in-1", 1, OK))
    story.tell(ev.Exited(0, story.now, 3))
    story.exit_all()
    assert [(decided.input_id, decided.status) for decided in story.asked(ev.Decide)] == [("in-1", "failed")]


def test_a_result_of_an_old_attempt_changes_nothing() -> None:
    story = Story(2).working()
    assert story.tell(ev.Put(0, "in-1", 9, OK)) == []
    assert story.gang.open[0].results == {}


def test_case_82_a_cancelled_input_is_decided_when_every_rank_is_done_with_it() -> None:
    story = Story(2).working()
    answers = story.tell(ev.CancelAsked("in-1"))
    assert ev.CancelOnRanks("in-1", (0, 1)) in answers
    story.tell(ev.Put(0, "in-1", 1, TERMINATED))
    assert story.asked(ev.Decide) == [] and story.gang.cancelled_on(1) == ["in-1"]
    story.tell(ev.Put(1, "in-1", 1, TERMINATED))
    assert [d.status for d in story.asked(ev.Decide) if isinstance(d, ev.Decide)] == ["terminated"]
    assert story.gang.assignment.phase == Phase.RUNNING


def test_a_rank_that_ignores_its_cancellation_is_stopped_with_its_gang() -> None:
    story = Story(2).working()
    story.tell(ev.CancelAsked("in-1"), ev.Put(0, "in-1", 1, TERMINATED))
    answers = story.tell(ev.TimerFired("cancel", "in-1", 1), after_ms=30_000)
    assert [a.rank for a in answers if isinstance(a, ev.StopRank)] == [1]
    assert [d.status for d in story.exit_all() if isinstance(d, ev.Decide)] == ["terminated"]


def test_an_idle_gang_leaves_by_the_kill_switch_and_is_interrupted_if_it_does_not() -> None:
    story = Story(2).running()
    story.tell(ev.StopAsked(Cause.IDLE, graceful=True))
    assert story.gang.must_leave(0) and not story.gang.is_counted
    assert story.asked(ev.StopRank) == []
    story.tell(ev.Exited(0, story.now))
    story.tell(ev.TimerFired("drain"), ev.TimerFired("linger"), after_ms=30_000)
    assert [s.rank for s in story.asked(ev.StopRank) if isinstance(s, ev.StopRank)] == [1]


def test_a_gang_that_drains_with_an_input_open_is_interrupted_too_when_it_does_not_leave_after_it() -> None:
    story = Story(2).working()
    story.tell(ev.StopAsked(Cause.STOPPED, graceful=True))
    answers = story.tell(ev.Put(0, "in-1", 1, OK), ev.Put(1, "in-1", 1, OK))
    assert ev.SetTimer("drain", 30_000) in answers
    answers = story.tell(ev.TimerFired("drain"), ev.TimerFired("linger"), after_ms=30_000)
    assert [a.rank for a in answers if isinstance(a, ev.StopRank)] == [0, 1]


def test_an_attempt_that_outlives_its_timeout_fails_the_call_and_names_the_rank() -> None:
    story = Story(2)
    story.gang.assignment.timeout_ms = 5_000
    story.working()
    assert story.asked(ev.SetTimer)[-1] == ev.SetTimer("timeout", 5_000, "in-1", 1)
    story.tell(ev.Put(0, "in-1", 1, OK))
    answers = story.tell(ev.TimerFired("timeout", "in-1", 1), after_ms=5_000)
    assert [a.rank for a in answers if isinstance(a, ev.StopRank)] == [1]
    story.exit_all()
    decided = story.asked(ev.Decide)[0]
    assert isinstance(decided, ev.Decide) and decided.failure is not None and decided.failure.cause == Cause.TIMEOUT
    assert "5 s on rank 1" in decided.failure.sentence


def test_a_timeout_after_the_decision_changes_nothing() -> None:
    story = Story(2).working()
    story.tell(ev.Put(0, "in-1", 1, OK), ev.Put(1, "in-1", 1, OK))
    assert story.tell(ev.TimerFired("timeout", "in-1", 1)) == []
    story.tell(ev.Delivered("in-1", 2), ev.Fetched(0, "in-1"))
    assert story.tell(ev.TimerFired("timeout", "in-1", 1)) == [], "the clock of the first attempt is not the second's"


def test_an_import_that_never_ends_fails_what_waits() -> None:
    story = Story(2)
    story.gang.assignment.startup_timeout_ms = 9_000
    story.prepared()
    story.tell(*(ev.PeersReached(r) for r in (0, 1)), ev.Hello(0), ev.Hello(1), ev.ClusterHello(0))
    story.tell(ev.TimerFired("startup"), after_ms=9_000)
    story.exit_all()
    failing = story.asked(ev.FailWaiting)[0]
    assert isinstance(failing, ev.FailWaiting) and "9 s on rank 1" in failing.failure.sentence


def test_an_enter_that_never_ends_on_one_rank_of_a_cluster_fails_what_waits() -> None:
    """A cluster's ranks say hello between import and @enter: that all said it is not the end of the start."""
    story = Story(2)
    story.gang.assignment.startup_timeout_ms = 60_000
    story.prepared()
    story.tell(*(ev.PeersReached(r) for r in story.ranks), *(ev.Hello(r) for r in story.ranks), *(ev.ClusterHello(r) for r in story.ranks))
    story.tell(ev.AsksForInputs(0), ev.TimerFired("startup"), after_ms=60_000)
    failure = story.gang.assignment.failures[0]
    assert failure.cause == Cause.TIMEOUT and "rank 1 (node node-1)" in failure.sentence
    assert len([f for f in story.exit_all(137) if isinstance(f, ev.FailWaiting)]) == 1


def test_a_cluster_whose_ranks_all_ask_for_inputs_has_started() -> None:
    story = Story(2).running()
    assert story.tell(ev.TimerFired("startup")) == []


def test_a_scaled_down_container_that_ends_badly_fails_no_input_that_waits() -> None:
    story = Story(1, clustered=False).running()
    story.tell(ev.StopAsked(Cause.IDLE, "scaled down", graceful=True))
    story.tell(ev.Exited(0, story.now, code=1))
    assert story.asked(ev.FailWaiting) == [] and story.asked(ev.Release) == [ev.Release(0)]


def test_a_lost_node_that_is_back_before_the_verdict_is_told_to_clean_up() -> None:
    story = Story(2).working()
    story.tell(ev.NodeLost(1, "node node-1 was away for over 15 minutes"))
    assert ev.Release(1) in story.tell(ev.Exited(0, story.now + 1, signal=2))


def test_what_remains_on_a_node_is_reported_with_the_rank() -> None:
    story = Story(2).working()
    story.tell(ev.Put(0, "in-1", 1, OK), ev.Put(1, "in-1", 1, OK), ev.StopAsked(Cause.STOPPED))
    story.exit_all()
    assert story.tell(ev.Released(0), ev.Released(1, "process 41 in state D")) == [ev.GangOver({1: "process 41 in state D"})]


def test_the_tables_name_every_state_and_refuse_the_rest() -> None:
    assert set(PHASES) == set(Phase) and set(MEMBERS) == set(MemberState)
    with pytest.raises(IllegalTransition, match="running -> preparing"):
        move_assignment(Story().running().gang.assignment, Phase.PREPARING)
