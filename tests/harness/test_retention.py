"""One node of many is lost: the healthy ones wait for the gang's next try, for a while, and for nobody who would delay it."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.model.retention import KeptNodes
from phalanx.protocol import agent_pb2 as pb
from phalanx.server.unit import Unit
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.waiting import until
from tests.harness.working import Work, function, item_of, nodes_of, waiting


def drain_now(plane: ControlPlane, *node_ids: str) -> None:
    def drain(unit: Unit) -> None:
        for node_id in node_ids:
            plane.server.nodes.drain(unit, node_id, "fan", now=True)

    plane.change(drain)


def kept(plane: ControlPlane) -> list[str]:
    return sorted(n for k in plane.server.world[KeptNodes].values() for n in k.node_ids)


def test_case_51_seven_healthy_nodes_of_eight_wait_for_the_replacement(control_plane: ControlPlane, fleet: Any) -> None:
    first, spare = fleet(8), FakeFleet(control_plane, 1, prefix="spare")
    work = Work(first)
    caller = Caller(control_plane)
    call = caller.call(function(caller, "train", 8))
    until(lambda: work.begun("train") == 8)
    rival = caller.call(function(caller, "rival", 4, priority=0))
    until(lambda: waiting(control_plane) == [("rival", "no_capacity")])
    drain_now(control_plane, "node-3")
    until(lambda: dict(waiting(control_plane)).get("rival") == "retained")
    healthy = [f"node-{n}" for n in (0, 1, 2, 4, 5, 6, 7)]
    assert kept(control_plane) == healthy and work.begun("rival") == 0
    short = caller.call(function(caller, "short", 2, timeout_secs=30))
    until(lambda: work.begun("short") == 2)
    assert nodes_of(control_plane, short) <= set(healthy), "lent to who is done before the time is over"
    work.finish("short")
    assert caller.result(short) == "short"
    spare.program = work
    spare.start()
    until(lambda: work.begun("train") == 8 + 8 - 1 and len(spare.ran) == 1)
    assert nodes_of(control_plane, call) == {*healthy, "spare-0"}
    assert kept(control_plane) == [] and item_of(control_plane, call).infra_failures == 1
    work.finish("train", "rival")
    assert caller.result(call) == "train" and caller.result(rival) == "rival"
    spare.stop()


@pytest.mark.parametrize("end", ["time over", "cancelled", "time over while the server was away"])
def test_kept_nodes_are_anybodys_when_the_gang_needs_them_no_more(control_plane: ControlPlane, end: str) -> None:
    nodes = FakeFleet(control_plane, 4)
    nodes.start()
    work = Work(nodes)
    caller = Caller(control_plane)
    call = caller.call(function(caller, "train", 4))
    until(lambda: work.begun("train") == 4)
    drain_now(control_plane, "node-0")
    rival = caller.call(function(caller, "rival", 3))
    until(lambda: dict(waiting(control_plane)).get("rival") == "retained")
    assert kept(control_plane) == ["node-1", "node-2", "node-3"]
    if end == "time over":
        control_plane.advance(121_000)
    elif end == "cancelled":
        caller.cancel(call)
    else:
        nodes.stop()
        control_plane.stop()
        control_plane.clock.away(121_000)
        control_plane.start()
        nodes = FakeFleet(control_plane, 4)
        nodes.start()
        work = Work(nodes)
    until(lambda: work.begun("rival") == 3)
    assert kept(control_plane) == []
    work.finish("rival")
    assert caller.result(rival) == "rival"
    nodes.stop()


def test_kept_nodes_stay_kept_over_a_restart(control_plane: ControlPlane) -> None:
    nodes = FakeFleet(control_plane, 4)
    nodes.start()
    work = Work(nodes)
    caller = Caller(control_plane)
    caller.call(function(caller, "train", 4))
    until(lambda: work.begun("train") == 4)
    drain_now(control_plane, "node-0")
    caller.call(function(caller, "rival", 3))
    until(lambda: dict(waiting(control_plane)).get("rival") == "retained")
    nodes.stop()
    control_plane.restart()
    again = FakeFleet(control_plane, 4)
    again.start()
    work = Work(again)
    until(lambda: dict(waiting(control_plane)).get("rival") == "retained")
    assert kept(control_plane) == ["node-1", "node-2", "node-3"] and again.ran == []
    again.stop()


def test_case_5_of_two_gangs_that_each_lost_a_node_one_recovers_whole_and_the_other_holds_nothing(
    control_plane: ControlPlane, fleet: Any
) -> None:
    work = Work(fleet(4))
    caller = Caller(control_plane)
    train = function(caller, "train", 2)
    calls = [caller.call(train) for _ in range(2)]
    until(lambda: work.begun("train") == 4)
    lost = [min(nodes_of(control_plane, call)) for call in calls]
    healthy = {f"node-{n}" for n in range(4)} - set(lost)
    drain_now(control_plane, *lost)
    until(lambda: work.begun("train") == 6)
    until(lambda: [name for name, _ in waiting(control_plane)] == ["train"])
    running = [call for call in calls if item_of(control_plane, call).state == "running"]
    assert len(running) == 1 and nodes_of(control_plane, running[0]) == healthy
    control_plane.change(control_plane.server.nodes.uncordon, lost[0])
    control_plane.change(control_plane.server.nodes.uncordon, lost[1])
    until(lambda: work.begun("train") == 8)
    work.finish("train")
    assert [caller.result(call) for call in calls] == ["train", "train"]


def test_a_start_that_one_node_refuses_keeps_the_others_for_the_next_try(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(3)
    nodes.refuse = lambda p: pb.Refusal(code="disk", sentence="no space") if p.node_id == "node-0" else None
    work = Work(nodes)
    caller = Caller(control_plane)
    call = caller.call(function(caller, "train", 3))
    until(lambda: kept(control_plane) == ["node-1", "node-2"])
    rival = caller.call(function(caller, "rival", 2))
    until(lambda: "rival" in dict(waiting(control_plane)))
    assert work.begun("rival") == 0
    nodes.refuse = lambda p: None
    control_plane.advance(31_000)
    until(lambda: work.begun("train") == 3)
    work.finish("train", "rival")
    assert caller.result(call) == "train" and caller.result(rival) == "rival"
