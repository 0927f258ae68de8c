"""Functions with inputs without end: between two inputs they give their nodes to who came before the next one, and come back in turn."""

from __future__ import annotations

import asyncio
from itertools import groupby
from types import SimpleNamespace
from typing import Any

from phalanx.config import Config
from phalanx.core import events as ev
from phalanx.model.cluster import Assignment, Cause
from phalanx.model.node import NodeRecord
from phalanx.model.work import Function, Input, InputState
from phalanx.server.giving_way import turn_ends_ms
from tests.core.stories import Story
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet, FakeRank
from tests.harness.waiting import until
from tests.harness.working import ended, function, item_of, waiting

STEP = 20_000


class OneByOne:
    """Each input of a function runs until the test has finished as many of that function as there were before it, and one more."""

    def __init__(self, fleet: FakeFleet) -> None:
        self.fleet = fleet
        self.given: dict[str, list[str]] = {}       # function -> its inputs in the order in which they began
        self.finished: dict[str, int] = {}
        self.order: list[tuple[str, str]] = []      # (function, input) as they began
        self._changed = asyncio.Condition()
        fleet.program = self

    async def __call__(self, rank: FakeRank, item: Any) -> str:
        name = rank.prepare.function_name
        given = self.given.setdefault(name, [])
        if item.input_id not in given:
            given.append(item.input_id)
            self.order.append((name, item.input_id))
        number = given.index(item.input_id)
        async with self._changed:
            await self._changed.wait_for(lambda: self.finished.get(name, 0) > number)
        return name

    def finish(self, name: str, count: int = 1) -> None:
        """The input of it that runs, or, with a count, so many."""

        async def finish() -> None:
            async with self._changed:
                self.finished[name] = self.finished.get(name, 0) + count
                self._changed.notify_all()

        self.fleet.control_plane.call(finish)

    def begun(self, name: str) -> int:
        """How many of its inputs have begun."""
        return len(self.given.get(name, ()))

    def names(self) -> list[str]:
        return [name for name, _ in self.order]


def date_of(plane: ControlPlane, name: str) -> int | None:
    """What `phalanx explain` shows as the earliest start."""
    found = plane.call(lambda: plane.server.planning.waiting())
    functions = plane.server.world[Function]
    return next((reason.earliest_start_ms for request, reason in found if functions[request.function_id].name == name), None)


def later(plane: ControlPlane, milliseconds: int) -> None:
    """Let time pass, until the agents are heard of again: meanwhile their nodes count as down, and nobody waits for what is on them."""
    plane.advance(milliseconds)
    planned(plane)


def planned(plane: ControlPlane) -> None:
    """Return when the latest plan knows all that happened."""
    server = plane.server
    nodes = server.world[NodeRecord]
    until(lambda: plane.call(lambda: all(map(server.agents.is_connected, nodes)) and not server.planning._scheduled))


def nothing_ran_twice(plane: ControlPlane) -> None:
    items = list(plane.server.world[Input].values())
    assert [item.attempt for item in items] == [1] * len(items)
    assert not any(item.user_failures or item.infra_failures or item.unpaid_restarts or item.preemptions for item in items)


def test_a_promised_gang_starts_at_the_first_end_of_an_input_after_its_date(control_plane: ControlPlane, fleet: Any) -> None:
    work = OneByOne(fleet(2))
    caller = Caller(control_plane)
    stream = function(caller, "stream", 2)
    first, second = caller.call(stream), caller.call(stream)
    until(lambda: work.begun("stream") == 1)
    later(control_plane, 100_000)
    gang = caller.call(function(caller, "gang", 2))
    later(control_plane, 1_000)
    third, fourth = caller.call(stream), caller.call(stream)
    work.finish("stream")
    until(lambda: work.begun("stream") == 2)     # it came before the gang
    predicted = control_plane.server.planning.durations.predict(stream, 86_400_000)
    assert predicted is not None
    promised = item_of(control_plane, second).started_ms + predicted
    until(lambda: date_of(control_plane, "gang") == promised)
    later(control_plane, 50_000)
    assert work.begun("gang") == 0, "never in the middle of an input"
    later(control_plane, 50_000)
    work.finish("stream")
    until(lambda: work.begun("gang") == 1)
    assert item_of(control_plane, gang).started_ms <= promised + 5_000
    assert [item_of(control_plane, call).state for call in (third, fourth)] == [InputState.PENDING] * 2
    given_up, = [a for a in control_plane.server.world[Assignment].values() if a.ended_ms]
    assert given_up.verdict is not None and given_up.verdict.cause == Cause.IDLE
    assert given_up.verdict.sentence == "its turn was over, and its nodes go to gang, which came before its next input"
    work.finish("gang")
    assert caller.result(gang) == "gang"
    work.finish("stream", 2)
    assert [caller.result(call) for call in (first, second, third, fourth)] == ["stream"] * 4
    nothing_ran_twice(control_plane)
    assert work.names() == ["stream", "stream", "gang", "stream", "stream"]


def test_two_functions_with_inputs_without_end_take_turns_of_a_minute_at_least(control_plane: ControlPlane, fleet: Any) -> None:
    work = OneByOne(fleet(1))
    caller = Caller(control_plane)
    functions = {name: function(caller, name, 1) for name in ("left", "right")}
    calls = [caller.call(functions[name]) for name in ("left", "right")]     # so that neither is ever without an input
    for step in range(18):
        calls += [caller.call(functions["left"]), caller.call(functions["right"])]
        until(lambda n=step: len(work.order) == n + 1)
        later(control_plane, STEP)
        work.finish(work.order[-1][0])
    until(lambda: len(work.order) == 19)
    turns = [len(list(turn)) for _, turn in groupby(work.names())]
    assert len(turns) >= 4 and all(length >= 3 for length in turns[:-1]), f"inputs of 20 s, turns of {turns}"
    assert all(length <= 7 for length in turns), f"nobody waits for ever: turns of {turns}"
    for name in functions:
        work.finish(name, 40)
    for call in calls:
        assert caller.result(call) in functions
    nothing_ran_twice(control_plane)
    assert ended(control_plane, Cause.PREEMPTED) == []


def test_within_its_turn_a_cluster_goes_on_and_without_a_waiting_call_for_ever(control_plane: ControlPlane, fleet: Any) -> None:
    work = OneByOne(fleet(1))
    caller = Caller(control_plane)
    stream, other = function(caller, "stream", 1), function(caller, "other", 1)
    calls = [caller.call(stream)]
    until(lambda: work.begun("stream") == 1)
    waits = caller.call(other)
    later(control_plane, 1_000)
    calls += [caller.call(stream) for _ in range(5)]
    for n in range(2, 5):
        later(control_plane, 10_000)
        work.finish("stream")
        until(lambda n=n: work.begun("stream") == n)
    caller.cancel(waits)
    later(control_plane, 100_000)
    work.finish("stream", 10)
    assert [caller.result(call) for call in calls] == ["stream"] * 6
    assert len(control_plane.server.world[Assignment]) == 1, "one cluster for all of them"


def test_the_nodes_go_to_the_gang_that_waited_and_not_to_somebody_behind_it(control_plane: ControlPlane, fleet: Any) -> None:
    work = OneByOne(fleet(2))
    caller = Caller(control_plane)
    stream = function(caller, "stream", 2)
    calls = [caller.call(stream)]
    until(lambda: work.begun("stream") == 1)
    later(control_plane, 70_000)
    gang = caller.call(function(caller, "gang", 2))
    until(lambda: [name for name, _ in waiting(control_plane)] == ["gang"])
    later(control_plane, 1_000)
    calls += [caller.call(stream), caller.call(function(caller, "small", 1)), caller.call(caller.function("plain"))]
    until(lambda: len(waiting(control_plane)) == 4)
    work.finish("stream")
    until(lambda: work.begun("gang") == 1)
    assert work.names() == ["stream", "gang"]
    work.finish("gang")
    assert caller.result(gang) == "gang"
    for name in ("stream", "small", "plain"):
        work.finish(name, 5)
    assert [caller.result(call) for call in calls] == ["stream", "stream", "small", "plain"]
    nothing_ran_twice(control_plane)


def test_case_17_plain_functions_of_the_same_priority_do_not_keep_a_gang_waiting_for_ever(control_plane: ControlPlane, fleet: Any) -> None:
    work = OneByOne(fleet(2))
    caller = Caller(control_plane)
    plain = caller.function("plain", timeout_secs=86_400)
    calls = [caller.call(plain)]
    until(lambda: work.begun("plain") == 1)
    later(control_plane, 70_000)
    gang = caller.call(function(caller, "gang", 2))
    until(lambda: waiting(control_plane) == [("gang", "no_capacity")])
    for n in range(2, 8):       # one container that has just begun may take inputs that would be done by the date that the gang is promised
        later(control_plane, 30_000)
        calls.append(caller.call(plain))
        planned(control_plane)
        if work.begun("gang"):
            break
        work.finish("plain")
        until(lambda n=n: work.begun("gang") or work.begun("plain") == n)
    until(lambda: work.begun("gang") == 1)
    work.finish("gang")
    assert caller.result(gang) == "gang"
    work.finish("plain", 10)
    assert [caller.result(call) for call in calls] == ["plain"] * len(calls)
    nothing_ran_twice(control_plane)


def test_who_has_the_lower_priority_waits_for_the_end_of_the_stream(control_plane: ControlPlane, fleet: Any) -> None:
    work = OneByOne(fleet(1))
    caller = Caller(control_plane)
    stream = function(caller, "stream", 1, priority=1)
    calls = [caller.call(stream)]
    until(lambda: work.begun("stream") == 1)
    low = caller.call(function(caller, "low", 1))
    later(control_plane, 100_000)
    calls += [caller.call(stream), caller.call(stream)]
    work.finish("stream", 3)
    assert [caller.result(call) for call in calls] == ["stream"] * 3
    work.finish("low")
    assert caller.result(low) == "low"
    assert work.names() == ["stream"] * 3 + ["low"]


def test_a_gang_of_two_nodes_waits_for_two_clusters_whose_inputs_end_at_different_times(control_plane: ControlPlane, fleet: Any) -> None:
    """The first to come to its end stays away from the next input, because that would move the date; its node waits for the other."""
    work = OneByOne(fleet(2))
    caller = Caller(control_plane)
    known = function(caller, "one", 1), function(caller, "two", 1)
    calls = [caller.call(function_id) for function_id in known]
    until(lambda: len(work.order) == 2)
    later(control_plane, 100_000)
    calls += [caller.call(known[0])]
    work.finish("one")
    until(lambda: work.begun("one") == 2)
    later(control_plane, 50_000)
    calls += [caller.call(known[1])]
    work.finish("two")
    until(lambda: work.begun("two") == 2)
    gang = caller.call(function(caller, "gang", 2))
    later(control_plane, 1_000)
    calls += [caller.call(function_id) for function_id in known]
    until(lambda: date_of(control_plane, "gang"))
    later(control_plane, 79_000)       # another input of 100 s would end long after the 150 s of the other cluster's
    work.finish("one")
    until(lambda: ended(control_plane, Cause.IDLE))
    later(control_plane, 20_000)
    assert work.begun("one") == 2, "not right back to the function that gave it up"
    work.finish("two")
    until(lambda: work.begun("gang") == 1)
    work.finish("gang")
    assert caller.result(gang) == "gang"
    for name in ("one", "two"):
        work.finish(name, 5)
    assert sorted(caller.result(call) for call in calls) == ["one"] * 3 + ["two"] * 3
    nothing_ran_twice(control_plane)


def test_a_turn_is_as_long_as_the_cluster_took_to_come_up_however_long_it_then_was_warm() -> None:
    server: Any = SimpleNamespace(config=Config())
    for took_ms, turn_ms in ((0, 60_000), (300_000, 300_000)):
        story = Story(size=1)
        story.gang.assignment.created_ms = story.now
        story.now += took_ms
        story.running()
        up_ms = story.now - story.gang.assignment.created_ms
        story.tell(ev.Delivered("in-1", 1), after_ms=36_000_000)
        assert turn_ends_ms(server, story.gang) == story.now + max(turn_ms, up_ms)
