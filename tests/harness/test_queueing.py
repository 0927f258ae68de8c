"""The queue over the whole control plane with fake agents: no gaps, in order, counted right, within quotas (cases.md C2)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from modal_proto import api_pb2

from phalanx.config import Config
from phalanx.model.node import NodeRecord
from phalanx.model.reasons import ReasonCode
from phalanx.model.work import Input, InputState
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane, SteppedClock
from tests.harness.fake_agents import FakeFleet, FakeRank
from tests.harness.waiting import until

GPUS = "H100:8"


class StillClock(SteppedClock):
    """Time stands still, and no timer fires by itself: what happens under it waits for no back-off, no window and no look again."""

    def now_ms(self) -> int:
        return 1_800_000_000_000

    def call_after(self, delay_ms: int, action: Any) -> Any:
        timer = super().call_after(delay_ms, action)
        timer.real.cancel()
        return timer


@pytest.fixture
def still(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane whose clock stands still."""
    plane = ControlPlane(tmp_path)
    plane.clock = StillClock()
    plane.start()
    yield plane
    plane.stop()
    assert not plane.bugs, "\n".join(plane.bugs)


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane with quotas: two queues of one cohort."""
    quotas: dict[str, dict[str, object]] = {name: {"nodes": 2, "cohort": "all", "borrow": 1} for name in ("left", "right")}
    plane = ControlPlane(tmp_path, Config(durability="process", quotas=quotas))
    plane.start()
    yield plane
    plane.stop()
    assert not plane.bugs, "\n".join(plane.bugs)


def test_case_25_twenty_short_gangs_follow_each_other_without_waiting_for_any_timer(still: ControlPlane) -> None:
    nodes = FakeFleet(still, 4)
    nodes.start()
    caller = Caller(still)
    calls = [caller.call(caller.function(f"job-{n}", size=4, gpu=GPUS)) for n in range(20)]
    assert [caller.result(call_id) for call_id in calls] == [0] * 20
    nodes.stop()


def test_case_25_single_use_clusters_follow_each_other_without_waiting_for_any_timer(still: ControlPlane) -> None:
    nodes = FakeFleet(still, 4)
    nodes.start()
    caller = Caller(still)
    function_id = caller.function(size=4, gpu=GPUS, single_use_containers=True)
    assert caller.results(caller.call(function_id, inputs=20), 20) == [0] * 20
    assert len({start.assignment for start in nodes.starts("prepare")}) == 20, "one cluster for each call, none in vain"
    nodes.stop()


def test_case_26_gangs_of_one_priority_start_in_the_order_in_which_they_were_submitted(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)
    caller = Caller(control_plane)
    held = asyncio.Event()

    async def hold(rank: FakeRank, item: Any) -> int:
        await held.wait()
        return 0

    nodes.program = hold
    first = caller.call(caller.function("holder", size=4, gpu=GPUS))
    until(lambda: len(nodes.ran) == 4)
    calls = []
    for n in range(1, 11):
        control_plane.advance(1000)
        calls.append(caller.call(caller.function(f"job-{n:02}", size=4, gpu=GPUS)))
    control_plane.call(held.set)
    assert [caller.result(call_id) for call_id in (first, *calls)] == [0] * 11
    started = list(dict.fromkeys(prepare.function_name for prepare in nodes.starts("prepare")))
    assert started == ["holder", *(f"job-{n:02}" for n in range(1, 11))]


def test_a_hundred_gangs_at_once_all_finish_whole(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(6)
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS, single_use_containers=True)
    assert caller.results(caller.call(function_id, inputs=100), 100) == [0] * 100
    ranks = [key for key, _, _ in nodes.ran]
    assert len(ranks) == 200 and len({assignment for assignment, _ in ranks}) == 100


def test_case_33_what_waits_is_counted_right_while_calls_are_added_and_cancelled(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    held = asyncio.Event()

    async def hold(rank: FakeRank, item: Any) -> int:
        await held.wait()
        return 0

    nodes.program = hold
    caller, draw = Caller(control_plane), random.Random(33)
    functions = [caller.function(name, size=2, gpu=GPUS) for name in ("one", "two")]
    caller.call(functions[0])
    until(lambda: len(nodes.ran) == 2)
    kept = []
    for n in range(60):
        kept.append(caller.call(functions[n % 2]))
        if draw.random() < 0.6:
            caller.cancel(kept.pop(draw.randrange(len(kept))))
    pending = [i for i in control_plane.server.world[Input].values() if i.state == InputState.PENDING]
    assert len(pending) == len(kept)
    assert sum(backlog(control_plane, function_id) for function_id in functions) == len(kept)
    until(lambda: len(control_plane.call(lambda: control_plane.server.planning.waiting())) == len(kept))
    control_plane.call(held.set)
    assert [caller.result(call_id) for call_id in kept] == [0] * len(kept)


def backlog(plane: ControlPlane, function_id: str) -> int:
    return int(plane.rpc("FunctionGetCurrentStats", api_pb2.FunctionGetCurrentStatsRequest(function_id=function_id)).backlog)


def test_a_change_that_the_kept_index_did_not_hear_of_fails_the_recount(control_plane: ControlPlane, fleet: Any) -> None:
    fleet(2)
    planning = control_plane.server.planning
    until(lambda: control_plane.call(lambda: planning.fleet._index is not None and len(planning.fleet._index.home) == 2))
    control_plane.call(planning.fleet.recount)

    def behind_its_back() -> None:
        control_plane.server.world[NodeRecord]["node-1"].rack = "elsewhere"
        planning.fleet.recount()

    with pytest.raises(AssertionError, match="node-1"):
        control_plane.call(behind_its_back)
    control_plane.call(lambda: planning.fleet.node_changed("node-1"))


def test_a_queue_runs_within_its_quota_and_borrows_what_its_cohort_leaves(queues: ControlPlane) -> None:
    nodes = FakeFleet(queues, 8)
    held = asyncio.Event()

    async def hold(rank: FakeRank, item: Any) -> int:
        await held.wait()
        return 0

    nodes.program = hold
    nodes.start()
    caller = Caller(queues)
    left = caller.function("left", size=1, gpu=GPUS, clustered=True, experimental_options={"queue": "left"})
    calls = [caller.call(left) for _ in range(4)]
    until(lambda: len(nodes.ran) == 3)      # two of its own and one of the other queue's
    (_, reason), = until(lambda: queues.call(lambda: queues.server.planning.waiting()))
    assert reason.code == ReasonCode.QUOTA and reason.number("limit") == 3
    queues.call(held.set)
    assert [caller.result(call_id) for call_id in calls] == [0] * 4
    nodes.stop()
