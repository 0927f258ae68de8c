"""Whose next input would be in the way: who gives its nodes up between two inputs, for whom, and who need not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from phalanx.model.plan import GiveWay, Hold, Node, Plan, Quota, Request, Retention, Snapshot, Stream
from phalanx.scheduler.plan import plan
from phalanx.scheduler.record import dump_plan
from tests.scheduler.builders import HOUR, MINUTE, check, gang, hold, node, nodes, reason_of, share, started
from tests.scheduler.test_properties import SEARCH, snapshots

NOW = HOUR


def busy(name: str, held: tuple[Node, ...], ends_ms: int, length_ms: int = 10 * MINUTE, function: str = "", **more: Any) -> Hold:
    """A cluster in the middle of an input of that length."""
    return hold(name, held, ends_ms, since_ms=ends_ms - length_ms, function_id=function or name, **more)


def stream(*holders: str, next_ms: int = NOW, function: str = "") -> Stream:
    """The next input of the function came then."""
    return Stream(function or holders[0], next_ms, holders)


def waits(name: str, size: int, since_ms: int = NOW - MINUTE, **more: Any) -> Request:
    return gang(name, size, submitted_ms=since_ms, function_id=f"fu-{name}", **more)


def ways(made: Plan) -> list[tuple[str, tuple[str, ...]]]:
    return [(way.for_request, way.holders) for way in made.give_way]


def test_a_cluster_gives_way_to_a_gang_that_came_before_its_next_input_and_to_no_other() -> None:
    fleet = nodes(4)
    holds = (busy("a", fleet, NOW + 5 * MINUTE),)
    older = Snapshot(NOW, fleet, holds, (waits("g", 4),), streams=(stream("a"),))
    made = plan(older)
    assert ways(made) == [("g", ("a",))] and reason_of(made, "g").earliest_start_ms == NOW + 5 * MINUTE and made.evict == ()
    assert ways(plan(replace(older, pending=(waits("g", 4, NOW + 1),)))) == [], "the next input was there first"
    assert ways(plan(replace(older, pending=(waits("g", 4, NOW),)))) == [], "and where they came together the cluster goes on"
    assert ways(plan(replace(older, pending=(waits("g", 4, priority=-1),)))) == []
    assert ways(plan(replace(older, streams=()))) == [], "without another input it ends by itself"
    assert ways(plan(replace(older, pending=(waits("g", 4, warm=True),)))) == [], "nobody waits for a warm gang"


def test_whoever_is_first_at_the_end_of_its_input_is_enough() -> None:
    fleet = nodes(4)
    holds = (busy("a", fleet[:2], NOW + 5 * MINUTE), busy("b", fleet[2:], NOW + 6 * MINUTE, 9 * HOUR))
    snapshot = Snapshot(NOW, fleet, holds, (waits("g", 2),), streams=(stream("a"), stream("b")))
    assert ways(plan(snapshot)) == [("g", ("a",)), ("g", ("b",))]
    with_victim = replace(snapshot, holds=(replace(holds[0], ending=True), holds[1]), streams=(stream("b"),))
    ending = replace(with_victim, retentions=(Retention("g", ("node-00", "node-01"), NOW + HOUR, ("a",)),))
    assert ways(plan(ending)) == [], "the one that has begun is enough"


def test_a_further_input_that_is_done_before_the_date_moves_nothing() -> None:
    """The gang needs both; the second ends in an hour, and the first can do some more inputs of ten minutes until then."""
    fleet = nodes(4)
    first, second = busy("a", fleet[:2], NOW + 5 * MINUTE), busy("b", fleet[2:], NOW + HOUR, 2 * HOUR)
    snapshot = Snapshot(NOW, fleet, (first, second), (waits("g", 4),), streams=(stream("a"), stream("b")))
    made = plan(snapshot)
    assert reason_of(made, "g").earliest_start_ms == NOW + HOUR
    assert ways(made) == [("g", ("a", "b"))]
    assert made.give_way[0].from_ms == (NOW + 50 * MINUTE + 1, NOW - HOUR + 1), "from when on another input would be past the date"
    assert ways(plan(replace(snapshot, nodes=nodes(6)))) == [("g", ("a",)), ("g", ("b",))], "with two free nodes either is enough"


def test_nodes_that_the_date_does_not_need_may_go_on() -> None:
    fleet = nodes(6)
    holds = (busy("a", fleet[:2], NOW + MINUTE), busy("b", fleet[2:4], NOW + MINUTE), busy("c", fleet[4:], NOW + MINUTE))
    streams = (stream("a", next_ms=NOW), stream("b", next_ms=NOW + 2), stream("c", next_ms=NOW + 1))
    made = plan(Snapshot(NOW, fleet, holds, (waits("g", 4),), streams=streams))
    assert ways(made) == [("g", ("b", "c"))], "the one whose next input is the oldest goes on"


def test_a_function_does_not_wait_for_the_end_of_its_own_cluster_that_goes_on() -> None:
    """Its second cluster claimed the nodes of its first, which never came back, and the other gang got no date for it."""
    fleet = nodes(4)
    holds = (busy("a", fleet, NOW + 5 * MINUTE, function="fu-more"),)
    pending = (waits("more", 4, NOW - 2 * MINUTE, predicted_ms=MINUTE), waits("g", 4))
    made = plan(Snapshot(NOW, fleet, holds, pending, streams=(stream("a", next_ms=NOW, function="fu-more"),)))
    assert [r.request_id for r in made.reserve] == ["g"]
    assert ways(made) == [("g", ("a",))]
    assert made.order[0] == "more"


def test_a_container_on_a_node_that_a_gang_needs_gives_way_too() -> None:
    fleet = nodes(2)
    one = busy("one", fleet[:1], NOW + MINUTE, whole=False, cpu_milli=1000)
    two = busy("two", fleet[:1], NOW + 2 * MINUTE, whole=False, cpu_milli=1000)
    snapshot = Snapshot(NOW, fleet, (one, two), (waits("g", 2),), streams=(stream("one", "two"),))
    two = replace(two, function_id="one")
    assert ways(plan(replace(snapshot, holds=(one, two)))) == [("g", ("one", "two"))]
    alone = replace(snapshot, holds=(one, replace(two, function_id="long")), streams=(stream("one"),))
    assert ways(plan(alone)) == [("g", ("one",))], "the other ends by itself"
    kept = replace(snapshot, holds=(two,), retentions=(Retention("g", ("node-00",), NOW + HOUR, ("one",)),))
    follower = share("more", submitted_ms=NOW, function_id="one", predicted_ms=10_000)
    assert plan(replace(kept, pending=(waits("g", 2), follower))).starts[0].node_ids == ("node-01",), "short, and not back beside the other"


def test_a_container_gives_its_place_to_another_functions_container() -> None:
    fleet = (node("n", cpu_milli=4000),)
    holds = tuple(busy(f"h{i}", fleet, NOW + i * MINUTE, whole=False, cpu_milli=2000, function="fu-a") for i in (1, 2))
    other = share("p", 2, submitted_ms=NOW - MINUTE, function_id="fu-p")
    made = plan(Snapshot(NOW, fleet, holds, (other,), streams=(stream("h1", "h2", function="fu-a"),)))
    assert ways(made) == [("p", ("h1",)), ("p", ("h2",))]
    begun = Snapshot(NOW, fleet, (replace(holds[0], ending=True), holds[1]), (other,), streams=(stream("h2", function="fu-a"),))
    assert ways(plan(begun)) == [], "the one that has begun is enough"


def test_a_queues_full_quota_is_passed_on_in_turn() -> None:
    fleet = nodes(8)
    mine, others = busy("a", fleet[:4], NOW + MINUTE, workspace="ann"), busy("b", fleet[4:6], NOW + MINUTE, workspace="ben")
    snapshot = Snapshot(NOW, fleet, (mine, others), (waits("g", 2, workspace="ann"),), quotas=(Quota("ann", 4),))
    assert ways(plan(replace(snapshot, streams=(stream("a"), stream("b"))))) == [("g", ("a",))]
    two = busy("a1", fleet[:2], NOW + MINUTE, workspace="ann"), busy("a2", fleet[2:4], NOW + MINUTE, workspace="ann")
    both = replace(snapshot, holds=two, streams=(stream("a1"), stream("a2")))
    assert ways(plan(both)) == [("g", ("a1",)), ("g", ("a2",))]
    begun = replace(both, holds=(replace(two[0], ending=True), two[1]), streams=(stream("a2"),))
    assert ways(plan(begun)) == [], "the one that has begun is enough"
    assert ways(plan(replace(begun, pending=(waits("g", 4, workspace="ann"),)))) == [("g", ("a2",))], "unless it needs both"


def test_who_waits_for_something_else_does_not_keep_others_from_being_given_way() -> None:
    fleet = nodes(4) + nodes(4, "other", gpu_type="A100", network="net-2")
    holds = (busy("a", fleet[:4], NOW + MINUTE), hold("long", fleet[4:6], NOW + 9 * HOUR, workspace="ann"))
    before = [gang(f"type{i}", 4, "A100:8", submitted_ms=0, function_id=f"fu-t{i}") for i in range(6)]
    before += [waits(f"quota{i}", 1, 0, workspace="ann") for i in range(6)]
    snapshot = Snapshot(NOW, fleet, holds, (*before, waits("g", 4)), quotas=(Quota("ann", 2),), streams=(stream("a"),))
    assert ways(plan(snapshot)) == [("g", ("a",))]
    large = tuple(waits(f"w{i}", 4, 0) for i in range(20))
    one = replace(snapshot, holds=(hold("long", fleet[:3], NOW + 9 * HOUR), busy("a", fleet[3:4], NOW + MINUTE)), quotas=())
    assert ("g", ("a",)) in ways(plan(replace(one, pending=(*large, waits("g", 1, predicted_ms=MINUTE)))))


@st.composite
def streaming(draw: st.DrawFn) -> Snapshot:
    """Some of what runs goes on, and what waits is of functions of its own, or of those."""
    base: Snapshot = draw(snapshots())
    names = ["fu-a", "fu-b", "fu-c"]
    holds = tuple(replace(h, function_id=draw(st.sampled_from(names))) for h in base.holds)
    pending = tuple(replace(r, function_id=draw(st.sampled_from([*names, r.request_id]))) for r in base.pending)
    streams = []
    for name in names:
        mine = tuple(h.holder_id for h in holds if h.function_id == name and not h.warm)
        if mine and draw(st.booleans()):
            streams.append(Stream(name, draw(st.integers(0, 10)) * MINUTE, mine))
    return replace(base, holds=holds, pending=pending, streams=tuple(streams))


@SEARCH
@given(streaming())
def test_nobody_gives_way_to_who_came_later_or_to_its_own_function(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    check(snapshot, made)
    requests, holds = {r.request_id: r for r in snapshot.pending}, {h.holder_id: h for h in snapshot.holds}
    streams = {holder: stream for stream in snapshot.streams for holder in stream.holders}
    assert not {way.for_request for way in made.give_way} & {*started(made), *(e.for_request for e in made.evict)}
    for way in made.give_way:
        request = requests[way.for_request]
        for holder in way.holders:
            assert request.function_id != streams[holder].function_id and request.priority >= holds[holder].priority
            assert request.priority > holds[holder].priority or request.submitted_ms < streams[holder].next_ms
    turned = replace(snapshot, streams=snapshot.streams[::-1], holds=snapshot.holds[::-1], pending=snapshot.pending[::-1])
    assert dump_plan(made) == dump_plan(plan(turned)), "order means nothing"


@SEARCH
@given(streaming())
def test_with_the_nodes_of_one_alternative_the_first_in_the_queue_starts(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    if not made.give_way or made.evict:
        return
    request_id = made.order[0]
    mine: list[GiveWay] = [way for way in made.give_way if way.for_request == request_id]
    if len(mine) < 2 or snapshot.retentions:
        return      # several: each is enough
    for way in mine:
        left = tuple(h for h in snapshot.holds if h.holder_id not in way.holders)
        assert request_id in started(plan(replace(snapshot, holds=left, streams=(), reservations=made.reserve)))
