"""Calls in the queue: deadlines, numbers that stay right, nodes that are going away."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phalanx.model.work import Input, InputState
from tests.harness.callers import Caller, Failed
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.waiting import until
from tests.harness.working import Work, ended, function, item_of, nodes_of, waiting


def test_case_24_a_call_that_never_gets_its_nodes_stays_queued_and_fails_at_its_deadline_with_the_reason(
    control_plane: ControlPlane, fleet: Any
) -> None:
    nodes = fleet(4)
    control_plane.change(control_plane.server.nodes.cordon, "node-0", "maintenance")
    caller = Caller(control_plane)
    call = caller.call(function(caller, "train", 4, options={"queue_deadline": "600"}))
    patient = caller.call(function(caller, "patient", 4))
    until(lambda: len(waiting(control_plane)) == 2)
    control_plane.advance(590_000)
    assert item_of(control_plane, call).state == InputState.PENDING and nodes.starts("prepare") == []
    control_plane.advance(20_000)
    said = r"gave up after 1\d min in the queue, its deadline: .*3 of 4 nodes free; 1 cordoned \(by hand: maintenance\)"
    with pytest.raises(Failed, match=said):
        caller.result(call)
    assert [name for name, _ in waiting(control_plane)] == ["patient"], "without a deadline it waits for ever"
    assert item_of(control_plane, patient).state == InputState.PENDING
    caller.cancel(patient)


def test_the_fleets_own_deadline_counts_from_the_start_of_each_wait_and_not_while_the_server_is_away(control_plane: ControlPlane) -> None:
    control_plane.config.queue_deadline_s = 600
    nodes = FakeFleet(control_plane, 2)
    nodes.start()
    work = Work(nodes)
    caller = Caller(control_plane)
    call = caller.call(function(caller, "train", 2))
    until(lambda: work.begun("train") == 2)
    control_plane.advance(3_600_000)        # it runs: no deadline
    nodes.stop()
    control_plane.stop()
    control_plane.clock.away(3_600_000)
    control_plane.start()
    control_plane.change(control_plane.server.nodes.drain, "node-1")
    nodes = FakeFleet(control_plane, 2)     # the machines are back, without their containers
    nodes.start()
    until(lambda: item_of(control_plane, call).state == InputState.PENDING)
    control_plane.advance(500_000)
    assert item_of(control_plane, call).state == InputState.PENDING
    control_plane.advance(200_000)
    with pytest.raises(Failed, match="gave up after .* in the queue"):
        caller.result(call)
    nodes.stop()


def test_nobody_is_stopped_for_a_call_that_is_past_its_deadline(control_plane: ControlPlane, fleet: Any) -> None:
    work = Work(fleet(2))
    caller = Caller(control_plane)
    low = caller.call(function(caller, "low", 2))
    until(lambda: work.begun("low") == 2)
    late = caller.call(function(caller, "late", 2, priority=10, options={"queue_deadline": "0.000001"}))
    with pytest.raises(Failed, match="2 held by cu-"):
        caller.result(late)
    assert ended(control_plane, "preempted") == [] and item_of(control_plane, low).preemptions == 0
    work.finish("low")
    assert caller.result(low) == "low"


def test_case_50_a_retry_does_not_use_a_draining_node_and_waits_with_the_reason_where_there_is_no_other(
    control_plane: ControlPlane, fleet: Any
) -> None:
    work = Work(fleet(3))
    caller = Caller(control_plane)
    call = caller.call(function(caller, "train", 2))
    until(lambda: work.begun("train") == 2)
    first = sorted(nodes_of(control_plane, call))
    drain = control_plane.server.nodes.drain
    control_plane.change(lambda unit: drain(unit, first[0], "gpu-health", now=True))
    until(lambda: work.begun("train") == 4)
    second = nodes_of(control_plane, call)
    assert first[0] not in second
    control_plane.change(lambda unit: drain(unit, sorted(second)[0], "fan", now=True))
    until(lambda: waiting(control_plane) == [("train", "draining")])
    (_, reason), = control_plane.call(lambda: control_plane.server.planning.waiting())
    assert (reason.number("free"), reason.number("drained")) == (1, 2)
    assert reason.text("drained_why") == "by hand: fan, by hand: gpu-health"
    control_plane.change(control_plane.server.nodes.uncordon, first[0])
    until(lambda: work.begun("train") == 6)
    work.finish("train")
    assert caller.result(call) == "train" and item_of(control_plane, call).user_failures == 0


def test_case_33_after_calls_that_come_and_go_at_once_the_counts_are_what_a_recount_gives(control_plane: ControlPlane, fleet: Any) -> None:
    fleet(2)
    caller, dice = Caller(control_plane), random.Random(33)
    functions = [function(caller, f"f{n}", 2) for n in range(3)]
    open_calls: list[str] = []
    for _ in range(60):
        if open_calls and dice.random() < 0.5:
            caller.cancel(open_calls.pop(dice.randrange(len(open_calls))))
        else:
            open_calls.append(caller.call(dice.choice(functions)))
        control_plane.call(recount, control_plane)
    for call in open_calls:
        caller.cancel(call)
    until(lambda: control_plane.call(lambda: not any(pool.waiting for pool in control_plane.server.gangs.pools.values())))
    control_plane.call(recount, control_plane)


def recount(plane: ControlPlane) -> None:
    items = [i for i in plane.server.world[Input].values() if i.state == InputState.PENDING]
    for function_id, pool in plane.server.gangs.pools.items():
        assert sorted(name for _, _, name in pool.waiting) == sorted(i.input_id for i in items if i.function_id == function_id)
