"""Clusters that work give way to calls of higher priority, and to nobody else: whole gangs, cheapest first, and never in vain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from modal_proto import api_pb2

from phalanx.model.cluster import Cause, Member
from phalanx.model.retention import KeptNodes
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import Died, FakeFleet, FakeRank
from tests.harness.waiting import until
from tests.harness.working import Work, ended, function, item_of, name_of, waiting


def test_case_18_exactly_one_whole_gang_is_stopped_the_one_with_the_least_to_lose(control_plane: ControlPlane, fleet: Any) -> None:
    work = Work(fleet(8))
    caller = Caller(control_plane)
    older = caller.call(function(caller, "older", 4))
    until(lambda: work.begun("older") == 4)
    control_plane.advance(3_600_000 // 60)
    younger = caller.call(function(caller, "younger", 4))
    until(lambda: work.begun("younger") == 4)
    control_plane.advance(60_000)
    urgent = caller.call(function(caller, "urgent", 4, priority=10))
    until(lambda: work.begun("urgent") == 4)
    stopped = ended(control_plane, Cause.PREEMPTED)
    assert [name_of(control_plane, a.assignment) for a in stopped] == ["younger"]
    assert stopped[0].verdict is not None and stopped[0].verdict.sentence == "preempted: its nodes are wanted by urgent, of priority 10"
    assert item_of(control_plane, urgent).evictions == 1
    victim = item_of(control_plane, younger)
    assert (victim.preemptions, victim.user_failures, victim.attempt) == (1, 0, 1)
    until(lambda: waiting(control_plane) == [("younger", "no_capacity")])
    work.finish("urgent")
    assert caller.result(urgent) == "urgent"
    until(lambda: work.begun("younger") == 8)     # the idle cluster is given up to it, and it runs again from the start
    work.finish("younger", "older")
    assert caller.result(younger) == "younger" and caller.result(older) == "older"
    assert item_of(control_plane, younger).attempt == 2 and item_of(control_plane, older).attempt == 1


def test_case_18_nobody_is_stopped_where_that_would_not_make_room(control_plane: ControlPlane, fleet: Any) -> None:
    work = Work(fleet(4))
    caller = Caller(control_plane)
    low = caller.call(function(caller, "low", 2))
    peer = caller.call(function(caller, "peer", 2, priority=10))
    until(lambda: work.begun("low") == 2 and work.begun("peer") == 2)
    urgent = caller.call(function(caller, "urgent", 4, priority=10))
    until(lambda: waiting(control_plane) == [("urgent", "no_capacity")])
    control_plane.advance(600_000)
    assert ended(control_plane, Cause.PREEMPTED) == [] and item_of(control_plane, urgent).evictions == 0
    work.finish("low", "peer", "urgent")
    assert [caller.result(call) for call in (low, peer, urgent)] == ["low", "peer", "urgent"]


def test_equal_priority_stops_nobody(control_plane: ControlPlane, fleet: Any) -> None:
    work = Work(fleet(2))
    caller = Caller(control_plane)
    first = caller.call(function(caller, "first", 2, priority=3))
    until(lambda: work.begun("first") == 2)
    second = caller.call(function(caller, "second", 2, priority=3))
    until(lambda: waiting(control_plane) == [("second", "no_capacity")])
    control_plane.advance(3_600_000 // 15)
    assert ended(control_plane, Cause.PREEMPTED) == []
    work.finish("first", "second")
    assert caller.result(first) == "first" and caller.result(second) == "second"


def test_case_17_a_plain_container_of_lower_priority_makes_way_for_a_gang(control_plane: ControlPlane, fleet: Any) -> None:
    work = Work(fleet(4))
    caller = Caller(control_plane)
    squatter = caller.call(caller.function("squatter"))
    until(lambda: work.begun("squatter") == 1)
    gang = caller.call(function(caller, "gang", 4, priority=1))
    until(lambda: work.begun("gang") == 4)
    assert [name_of(control_plane, a.assignment) for a in ended(control_plane, Cause.PREEMPTED)] == ["squatter"]
    work.finish("gang", "squatter")
    assert caller.result(gang) == "gang"
    assert caller.result(squatter) == "squatter", "it runs again after the gang"


def test_the_victims_nodes_wait_for_the_call_they_were_taken_for_over_a_restart(control_plane: ControlPlane, fleet: Any) -> None:
    """The victim takes its time to leave; a younger call of the same priority does not get its nodes, nor is anybody stopped twice."""
    nodes = FakeFleet(control_plane, 4)
    nodes.start()
    work = Work(nodes)
    nodes.deaf_to_stop = True
    caller = Caller(control_plane)
    low = caller.call(function(caller, "low", 4))
    until(lambda: work.begun("low") == 4)
    urgent = caller.call(function(caller, "urgent", 4, priority=10))
    until(lambda: waiting(control_plane) == [("urgent", "preempting")])
    small = caller.call(function(caller, "small", 1, priority=10))
    until(lambda: len(waiting(control_plane)) == 2)
    before = item_of(control_plane, urgent).evictions
    nodes.lose_agent()
    nodes.stop()
    control_plane.restart()
    again = FakeFleet(control_plane, 4)       # the machines of before, whose containers are gone
    again.start()
    work = Work(again)
    until(lambda: work.begun("urgent") == 4)
    assert before == 1 and item_of(control_plane, urgent).evictions == 1
    assert work.begun("small") == 0
    assert control_plane.server.world[KeptNodes] == {}, "it has started: nothing is kept for it"
    work.finish("urgent", "small", "low")
    assert [caller.result(call) for call in (urgent, small, low)] == ["urgent", "small", "low"]
    again.stop()


def test_548_preemptions_a_call_that_crashes_again_and_again_stops_others_three_times_and_then_waits(
    control_plane: ControlPlane, fleet: Any
) -> None:
    nodes = fleet(2)
    work = Work(nodes)

    async def crash_or_work(rank: FakeRank, item: Any) -> str:
        if rank.prepare.function_name == "crashes":
            raise Died(code=1)
        return await work(rank, item)

    nodes.program = crash_or_work
    caller = Caller(control_plane)
    retries = api_pb2.FunctionRetryPolicy(retries=10, initial_delay_ms=0, max_delay_ms=60_000, backoff_coefficient=1.0)
    patient = caller.call(function(caller, "patient", 2))
    until(lambda: work.begun("patient") == 2)
    crashing = caller.call(function(caller, "crashes", 2, priority=10, retry_policy=retries))

    def later(count: Callable[[], int], wanted: int) -> bool:
        control_plane.advance(1_000)
        return count() >= wanted

    for stops in (1, 2, 3):
        until(partial(later, lambda: item_of(control_plane, patient).preemptions, stops))
        until(partial(later, lambda: work.begun("patient"), 2 * (stops + 1)))
    assert item_of(control_plane, crashing).evictions == 3
    control_plane.advance(1_200_000)       # over every back-off of either
    assert item_of(control_plane, patient).preemptions == 3, "neither may the one stop anybody again, nor would the other be stopped"
    work.finish("patient")
    assert caller.result(patient) == "patient"


def test_who_was_stopped_is_left_alone_for_a_while_and_after_three_times_for_good(control_plane: ControlPlane, fleet: Any) -> None:
    work = Work(fleet(2))
    caller = Caller(control_plane)
    low = caller.call(function(caller, "low", 2))

    def later(name: str, ranks: int) -> bool:
        control_plane.advance(60_000)
        return work.begun(name) == ranks

    until(lambda: work.begun("low") == 2)
    for name, ranks in (("one", 4), ("two", 6), ("three", 8)):
        urgent = caller.call(function(caller, name, 2, priority=10))
        until(partial(later, name, 2))
        work.finish(name)
        assert caller.result(urgent) == name
        until(partial(later, "low", ranks))
    last = caller.call(function(caller, "last", 2, priority=10))
    until(lambda: waiting(control_plane))
    control_plane.advance(200_000)
    assert waiting(control_plane) == [("last", "no_capacity")] and item_of(control_plane, low).preemptions == 3
    work.finish("low", "last")
    assert caller.result(low) == "low" and caller.result(last) == "last"
    assert len({m.assignment for m in control_plane.server.world[Member].values()}) == 8
