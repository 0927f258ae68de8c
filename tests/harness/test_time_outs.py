"""What runs out and what does not: queued work never, nodes and containers that are late, start-up, and one clock for each attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from modal_proto import api_pb2

from phalanx.model.cluster import Assignment, Member, MemberState, Phase
from phalanx.model.node import NodeRecord
from phalanx.model.work import Input, InputState
from tests.harness.callers import Caller, Failed
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeRank
from tests.harness.waiting import until

GPUS = "H100:8"
TIMEOUT = api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT


async def work_on(rank: FakeRank, item: Any) -> None:
    await asyncio.sleep(3600)


def cordon(plane: ControlPlane, why: str) -> None:
    def change(unit: Any) -> None:
        for record in plane.server.world[NodeRecord].values():
            record.cordoned = why
            unit.put(record)
        unit.after(plane.server.planning.soon)

    plane.change(change)


def only_input(plane: ControlPlane) -> Input:
    (item,) = plane.server.world[Input].values()
    return item


def phases(plane: ControlPlane) -> list[str]:
    return [assignment.phase for assignment in plane.server.world[Assignment].values()]


def test_case_27_an_hour_in_the_queue_is_no_part_of_any_timeout(control_plane: ControlPlane, fleet: Any) -> None:
    fleet(2)
    cordon(control_plane, "maintenance")
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS, startup_timeout_secs=60))
    until(lambda: control_plane.call(control_plane.server.planning.waiting))
    control_plane.advance(3_600_000)
    assert only_input(control_plane).state == InputState.PENDING
    cordon(control_plane, "")
    assert caller.result(call_id) == 0


def test_an_input_that_outlives_its_timeout_fails_with_it_and_names_the_rank(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)

    async def one_hangs(rank: FakeRank, item: Any) -> None:
        if rank.prepare.rank == 1:
            await asyncio.sleep(3600)

    nodes.program = one_hangs
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS, experimental_options={"finish_window": "3600"})
    call_id = caller.call(function_id)
    gangs = control_plane.server.gangs
    until(lambda: len(nodes.ran) == 2)
    until(lambda: gangs.running and [list(a.results) for gang in gangs.running.values() for a in gang.open] == [[0]])
    control_plane.advance(300_001)
    with pytest.raises(Failed, match=r"longer than its timeout of 300 s on rank 1 \(node node-") as failed:
        caller.result(call_id)
    assert failed.value.status == TIMEOUT
    assert str(failed.value).splitlines()[-1].endswith(": done with the input")


def test_enter_has_its_own_timeout_and_it_is_the_users(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)

    importing: list[int] = []

    async def hang(rank: FakeRank) -> None:
        importing.append(rank.prepare.rank)
        if rank.prepare.rank == 1:
            await asyncio.sleep(3600)

    nodes.on_import = hang
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS, startup_timeout_secs=60))
    until(lambda: sorted(importing) == [0, 1])
    control_plane.advance(60_001)
    with pytest.raises(Failed, match=r"import and @enter took longer than the startup timeout of 60 s on rank 1") as failed:
        caller.result(call_id)
    assert failed.value.status == TIMEOUT


def test_case_104_a_cluster_is_not_running_while_one_rank_still_pulls_and_its_node_is_left_out_at_last(
    control_plane: ControlPlane, fleet: Any
) -> None:
    nodes = fleet(3)
    nodes.never_prepares = {"node-1"}
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: [m.state for m in control_plane.server.world[Member].values()].count(MemberState.PREPARED) == 1)
    assert phases(control_plane) == [Phase.PREPARING] and nodes.starts() == []
    control_plane.advance(600_001)
    until(lambda: only_input(control_plane).infra_failures == 1)
    control_plane.advance(2_000)    # the next start waits a second
    assert caller.result(call_id) == 0
    first = min(control_plane.server.world[Assignment].values(), key=lambda a: a.assignment)
    assert first.verdict is not None and first.verdict.sentence.endswith("on node node-1 was not prepared within 600 s")
    assert only_input(control_plane).excluded_nodes == ["node-1"] and only_input(control_plane).user_failures == 0


def test_a_container_that_never_says_hello_costs_a_restart_not_a_retry(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(3)
    hung: set[str] = set()

    async def first_on_rank_1_hangs(rank: FakeRank) -> None:
        if rank.prepare.rank == 1 and not hung:
            hung.add(rank.prepare.node_id)
            await asyncio.sleep(3600)

    nodes.before_hello = first_on_rank_1_hangs
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: [m.state for m in control_plane.server.world[Member].values()].count(MemberState.HELLO) == 1)
    control_plane.advance(300_001)
    until(lambda: only_input(control_plane).infra_failures == 1)
    control_plane.advance(2_000)
    assert caller.result(call_id) == 0
    assert set(only_input(control_plane).excluded_nodes) == hung and only_input(control_plane).user_failures == 0
