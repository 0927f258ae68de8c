"""The first cause, whoever reports first, and what the other ranks were doing (design rule 4)."""

from __future__ import annotations

import itertools

import pytest

from phalanx.core import events as ev
from phalanx.core.echoes import is_echo
from phalanx.model.cluster import Cause, Failure, RankResult
from tests.core.stories import FAILED, OK, Story

CLOSED = RankResult("failed", b"pickled", sentence="ConnectionResetError(104, 'Connection reset by peer')")


def verdict(story: Story) -> Failure:
    found = story.gang.assignment.verdict
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        "ConnectionResetError(104, 'Connection reset by peer')",
        "RuntimeError('[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [fdaa::2]:33333')",
        "RuntimeError('socket closed')",
        "DistBackendError('NCCL error in: ProcessGroupNCCL.cpp:2356, remote process exited or there was a network error')",
        "torch.distributed.DistNetworkError('The client socket has failed to connect to [fdaa::1]:29500')",
        "BrokenPipeError(32, 'Broken pipe')",
        "RayActorError('The actor died because its node has died.')",
    ],
)
def test_errors_of_sockets_and_collectives_read_like_echoes(text: str) -> None:
    assert is_echo(text)


@pytest.mark.parametrize("text", ["ValueError('wrong shape (3, 4)')", "FileNotFoundError(2, 'No such file')", "KeyError('globe')"])
def test_other_errors_do_not(text: str) -> None:
    assert not is_echo(text)


@pytest.mark.parametrize("node_first", [True, False], ids=["node first", "socket first"])
def test_case_40_a_lost_node_and_a_closed_socket_are_one_infrastructure_failure(node_first: bool) -> None:
    story = Story(2).working()
    events: list[ev.Event] = [ev.NodeLost(1, "node node-1 was lost"), ev.Exited(0, story.now + 2, code=1)]
    if not node_first:
        events = [ev.Put(0, "in-1", 1, CLOSED), ev.Exited(0, story.now + 2), ev.NodeLost(1, "node node-1 was lost")]
    story.tell(*events, after_ms=2_000)
    assert story.asked(ev.Decide) == []
    assert story.asked(ev.Requeue) == [ev.Requeue("in-1", "node node-1 was lost", ("node-1",))]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_verdict_is_the_same_in_whatever_order_reports_arrive(order: tuple[int, ...]) -> None:
    """Rank 2 exits with 3 at one moment; ranks 0 and 1 see their sockets close. All three are reported, in any order."""
    story = Story(3).working()
    died_at = story.now
    reports: list[ev.Event] = [ev.Put(0, "in-1", 1, CLOSED), ev.Put(1, "in-1", 1, CLOSED), ev.Exited(2, died_at, code=3)]
    story.tell(*(reports[at] for at in order))
    story.tell(ev.Exited(0, story.now), ev.Exited(1, story.now), ev.Exited(2, died_at, code=3))
    assert (verdict(story).cause, verdict(story).rank) == (Cause.EXIT, 2)
    assert verdict(story).sentence == "rank 2 on node node-2 exited with code 3"


def test_an_exception_goes_before_the_connection_errors_that_it_caused() -> None:
    story = Story(2).working()
    story.tell(ev.Put(0, "in-1", 1, CLOSED), ev.Put(1, "in-1", 1, FAILED))
    story.exit_all()
    assert (verdict(story).cause, verdict(story).rank) == (Cause.EXCEPTION, 1)


def test_a_connection_error_with_no_other_cause_is_the_users() -> None:
    story = Story(2).working()
    story.tell(ev.Put(0, "in-1", 1, CLOSED))
    decided = next(d for d in story.exit_all() if isinstance(d, ev.Decide))
    assert decided.status == "failed" and decided.failure is not None and decided.failure.cause == Cause.COLLECTIVE
    assert decided.failure.result == b"pickled", "the caller raises the rank's own exception"


def test_case_47_a_segfault_noticed_just_after_the_others_connection_error_is_the_cause() -> None:
    story = Story(2).working()
    story.tell(ev.Put(0, "in-1", 1, CLOSED))
    story.tell(ev.Exited(1, story.now + 300, signal=11), ev.Exited(0, story.now + 400, signal=2))
    assert (verdict(story).cause, verdict(story).rank) == (Cause.SIGNAL, 1)
    assert "SIGSEGV" in verdict(story).sentence


@pytest.mark.parametrize(("told", "rank"), [(False, 1), (True, 0)], ids=["died by itself", "was told to stop"])
def test_a_node_knows_whether_a_rank_died_before_it_was_told_to_stop(told: bool, rank: int) -> None:
    """Rank 0's word of its closed socket comes a moment before rank 1's exit, by whatever clock."""
    story = Story(2).working()
    story.tell(ev.Put(0, "in-1", 1, CLOSED))
    story.tell(ev.Exited(1, story.now + 40, code=3, told=told), ev.Exited(0, story.now + 50, told=True))
    assert verdict(story).rank == rank


def test_a_rank_without_an_input_that_leaves_badly_when_all_end_is_not_the_cause() -> None:
    story = Story(3).running()
    story.tell(ev.Delivered("in-1", 1), ev.Fetched(0, "in-1"), ev.Fetched(1, "in-1"), ev.Put(0, "in-1", 1, FAILED))
    story.tell(ev.Exited(2, story.now + 9, code=1, told=False), *(ev.Exited(r, story.now + 9, told=True) for r in (0, 1)))
    assert (verdict(story).cause, verdict(story).rank) == (Cause.EXCEPTION, 0)


def test_a_rank_that_crashes_long_after_it_was_told_to_stop_is_not_the_cause() -> None:
    story = Story(2).working()
    story.tell(ev.Put(0, "in-1", 1, CLOSED))
    story.tell(ev.Exited(1, story.now + 20_000, signal=11), ev.Exited(0, story.now))
    assert (verdict(story).cause, verdict(story).rank) == (Cause.COLLECTIVE, 0)


def test_each_other_rank_has_a_line_that_says_what_it_was_doing() -> None:
    story = Story(4).running()
    story.tell(ev.Delivered("in-1", 1), *(ev.Fetched(rank, "in-1") for rank in (0, 1, 2)), ev.Put(0, "in-1", 1, OK))
    story.tell(ev.Exited(2, story.now, code=1), ev.Put(1, "in-1", 1, CLOSED))
    story.tell(*(ev.Exited(rank, story.now + 9) for rank in (0, 1, 3)))
    assert verdict(story).others == [
        "rank 0 (node-0): done with the input",
        "rank 1 (node-1): running the input, then raised ConnectionResetError(104, 'Connection reset by peer')",
        "rank 3 (node-3): waiting for inputs",
    ]


@pytest.mark.parametrize(
    ("begin", "line"),
    [
        ([], "rank 1 (node-1): starting"),
        ([ev.Hello(1)], "rank 1 (node-1): waiting for the other ranks to start"),
    ],
)
def test_before_the_first_barrier_a_rank_is_starting_or_waits_for_the_others(begin: list[ev.Event], line: str) -> None:
    story = Story(2)
    story.prepared()
    story.tell(*begin, ev.Exited(0, story.now, code=1))
    story.tell(ev.Exited(1, story.now + 9, signal=9))
    assert verdict(story).others == [line]


def test_in_import_and_enter_a_rank_says_so() -> None:
    story = Story(3)
    story.prepared()
    story.tell(*(ev.PeersReached(r) for r in story.ranks), *(ev.Hello(r) for r in story.ranks), ev.ClusterHello(2))
    story.tell(ev.TaskFailed(0, b"pickled", "ImportError('no module named x')"))
    story.exit_all()
    assert verdict(story).sentence == "rank 0 on node node-0 raised ImportError('no module named x')"
    assert verdict(story).others == ["rank 1 (node-1): importing", "rank 2 (node-2): waiting for the other ranks to import"]


def test_ranks_that_ended_before_say_how() -> None:
    story = Story(3).working()
    story.tell(ev.Put(0, "in-1", 1, OK), ev.Exited(0, story.now), ev.NodeLost(2, "node node-2 was lost"))
    story.tell(ev.Exited(1, story.now + 9, signal=2))
    assert verdict(story).others == ["rank 0 (node-0): exited with code 0", "rank 1 (node-1): running the input"]


def test_case_56_a_head_that_runs_out_of_memory_ends_the_cluster_and_is_told_with_its_limit() -> None:
    story = Story(2).working()
    story.tell(ev.Exited(0, story.now, signal=9, oom_killed=True, sentence="limit 128 MiB, peak 128 MiB"), ev.Exited(1, story.now + 1))
    decided = story.asked(ev.Decide)[0]
    assert isinstance(decided, ev.Decide) and decided.failure is not None and decided.failure.cause == Cause.OOM
    assert decided.failure.sentence == "rank 0 on node node-0 ran out of memory: limit 128 MiB, peak 128 MiB"


def test_other_inputs_of_a_cancelled_clusters_run_again_and_nobody_pays() -> None:
    """`terminate_containers=True` is about one call: the documented behaviour reschedules the others."""
    story = Story(2, max_inputs=2).running()
    story.tell(*(ev.Delivered(i, 1) for i in ("in-1", "in-2")), *(ev.Fetched(r, i) for r in story.ranks for i in ("in-1", "in-2")))
    story.tell(ev.CancelAsked("in-1", terminate=True))
    ends = [i for i in story.exit_all() if isinstance(i, ev.Decide | ev.Requeue)]
    assert [(type(i), i.input_id) for i in ends] == [(ev.Decide, "in-1"), (ev.Requeue, "in-2")]
    assert isinstance(ends[1], ev.Requeue) and not ends[1].charged
