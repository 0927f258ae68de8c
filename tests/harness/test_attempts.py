"""The attempts of one input: which budget pays, what the program and the user are told, which nodes are avoided (cases.md C3)."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from modal_proto import api_pb2

from phalanx.core import events as ev
from phalanx.model.cluster import Assignment, Cause, Member, Phase
from phalanx.model.failed_starts import CrashedStarts
from phalanx.model.work import Input, InputState
from phalanx.protocol import agent_pb2 as pb
from tests.harness.callers import Caller, Failed
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import Died, FakeRank
from tests.harness.waiting import until

GPUS = "H100:8"
RETRY_MS = 1_100
Result = api_pb2.GenericResult


def retries(count: int) -> api_pb2.FunctionRetryPolicy:
    return api_pb2.FunctionRetryPolicy(retries=count, initial_delay_ms=1000, backoff_coefficient=1.0, max_delay_ms=60_000)


async def fail(rank: FakeRank, item: Any) -> None:
    raise ValueError(f"attempt {item.retry_count + 1}")


async def work_on(rank: FakeRank, item: Any) -> None:
    await asyncio.sleep(3600)


def only_input(plane: ControlPlane) -> Input:
    (item,) = plane.server.world[Input].values()
    return item


def log_lines(plane: ControlPlane, app_id: str) -> list[str]:
    batches = plane.rpc("AppFetchLogs", api_pb2.AppFetchLogsRequest(app_id=app_id, limit=1000)).batches
    return [item.data.rstrip("\n") for batch in batches for item in batch.items]


def nodes_of(plane: ControlPlane, assignment: int) -> set[str]:
    return {m.node_id for m in plane.server.world[Member].values() if m.assignment == assignment}


def waits_for_its_retry(plane: ControlPlane) -> bool:
    item = only_input(plane)
    return item.state == InputState.DONE or (item.state == InputState.PENDING and item.not_before_ms > plane.server.now_ms())


def test_case_52_ten_retries_are_eleven_attempts_and_each_knows_its_number(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.program = fail
    environments: dict[int, dict[str, str]] = {}

    async def note(rank: FakeRank) -> None:
        environments[rank.prepare.assignment] = dict(rank.prepare.environment)

    nodes.on_import = note
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS, retry_policy=retries(10)))
    for _ in range(10):
        until(lambda: waits_for_its_retry(control_plane))
        control_plane.advance(RETRY_MS)
    with pytest.raises(Failed) as failed:
        caller.result(call_id)
    assert pickle.loads(failed.value.data).args == ("attempt 11",)
    assert sorted({count for _, _, count in nodes.ran}) == list(range(11))
    assert len({key[0] for key, _, _ in nodes.ran}) == 11, "each attempt starts all ranks afresh"
    told = [environments[number] for number in sorted(environments)]
    assert [env["PHALANX_ATTEMPT"] for env in told] == [str(n) for n in range(1, 12)]
    assert "PHALANX_LAST_END" not in told[0] and "raised ValueError('attempt 1')" in told[1]["PHALANX_LAST_END"]
    lines = log_lines(control_plane, caller.app_id)
    (second,) = [line for line in lines if line.startswith(f"attempt 2 of call {call_id}: attempt 1 ended because rank ")]
    assert second.endswith("raised ValueError('attempt 1'); retry 1 of 10, in 1 s")
    assert (only_input(control_plane).user_failures, only_input(control_plane).infra_failures) == (10, 0)


def test_a_huge_or_odd_error_does_not_keep_the_next_attempt_from_starting(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(1)

    async def fail_hugely(rank: FakeRank, item: Any) -> int:
        if item.retry_count == 0:
            raise ValueError("\0".join(["x" * 1000] * 300))
        return len(rank.prepare.environment.get("PHALANX_LAST_END", ""))

    nodes.program = fail_hugely
    caller = Caller(control_plane)
    function_id = caller.function(retry_policy=retries(1), single_use_containers=True)
    call_id = caller.call(function_id)
    until(lambda: waits_for_its_retry(control_plane))
    assert len(only_input(control_plane).last_end) == 1_000 and "\0" not in only_input(control_plane).last_end
    control_plane.advance(RETRY_MS)
    assert caller.result(call_id) in (0, 1_000)


def test_case_57_without_retries_the_same_way_ends_after_one_attempt(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.program = fail
    caller = Caller(control_plane)
    with pytest.raises(Failed) as failed:
        caller.result(caller.call(caller.function(size=2, gpu=GPUS)))
    assert pickle.loads(failed.value.data).args == ("attempt 1",)
    assert {count for _, _, count in nodes.ran} == {0}


def test_case_54_a_start_that_fails_each_time_ends_with_its_budget(control_plane: ControlPlane, fleet: Any) -> None:
    control_plane.config.infra_retries = 3
    nodes = fleet(2)
    nodes.unreachable = lambda check: ["fdaa::bad"]
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    for n in range(1, 5):
        until(lambda n=n: len([a for a in control_plane.server.world[Assignment].values() if a.phase == Phase.ENDED]) == n)
        control_plane.advance(601_000)      # a node that refuses three times in a row is set aside for so long
    with pytest.raises(Failed, match=r"gave up after 3 restarts that were not the program's fault.*can't reach fdaa::bad") as failed:
        caller.result(call_id)
    assert failed.value.status == Result.GENERIC_STATUS_INTERNAL_FAILURE
    assert only_input(control_plane).user_failures == 0 and nodes.ran == []


def test_case_49_the_node_that_failed_is_left_out_of_the_next_attempt(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(3)

    async def first_waits(rank: FakeRank, item: Any) -> str:
        if item.retry_count == 0:
            await asyncio.sleep(3600)
        return rank.prepare.environment["PHALANX_LAST_END"]

    nodes.program = first_waits
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: len(nodes.ran) == 2)
    gangs = control_plane.server.gangs
    number = next(iter(gangs.running))
    bad = gangs.running[number].members[1].node_id
    control_plane.change(gangs.dispatch, number, ev.NodeLost(1, f"node {bad} fell off the bus"))
    assert caller.result(call_id) == f"node {bad} fell off the bus"
    assert only_input(control_plane).excluded_nodes == [bad] and only_input(control_plane).infra_failures == 1
    (second,) = [n for n in control_plane.server.world[Assignment] if n != number]
    assert bad not in nodes_of(control_plane, second)
    told = f"restart 1 of 16 by no fault of the program, at once, not on {bad}"
    until(lambda: any(told in line for line in log_lines(control_plane, caller.app_id)))


def test_exclusions_are_forgotten_where_the_rest_of_the_fleet_could_never_run_it(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)

    async def first_waits(rank: FakeRank, item: Any) -> int:
        if item.retry_count == 0:
            await asyncio.sleep(3600)
        return item.retry_count

    nodes.program = first_waits
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: len(nodes.ran) == 2)
    gangs = control_plane.server.gangs
    control_plane.change(gangs.dispatch, next(iter(gangs.running)), ev.NodeLost(1, "node-1 is gone"))
    until(lambda: not gangs.running)
    control_plane.advance(31_000)       # for so long a node that failed is left out in any case
    assert caller.result(call_id) == 1
    assert only_input(control_plane).excluded_nodes == ["node-1"]


def test_a_failure_of_the_program_speaks_against_no_node(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(4)
    nodes.program = fail
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS, retry_policy=retries(1)))
    until(lambda: waits_for_its_retry(control_plane))
    control_plane.advance(RETRY_MS)
    with pytest.raises(Failed):
        caller.result(call_id)
    assert only_input(control_plane).excluded_nodes == []


def test_case_40_a_lost_node_and_a_closed_socket_cost_one_restart_and_no_retry(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(3)
    cut = asyncio.Event()

    async def talk(rank: FakeRank, item: Any) -> str:
        if item.retry_count:
            return "second try"
        if rank.prepare.rank == 0:
            await cut.wait()
            raise ConnectionResetError(104, "socket closed")
        await asyncio.sleep(3600)
        return ""

    nodes.program, nodes.deaf_to_stop = talk, True
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS, retry_policy=retries(3)))
    until(lambda: len(nodes.ran) == 2)
    gangs = control_plane.server.gangs
    number = next(iter(gangs.running))
    control_plane.call(cut.set)
    until(lambda: control_plane.server.world[Assignment][number].phase == Phase.ENDING)
    control_plane.advance(2_000)
    assert only_input(control_plane).state == InputState.RUNNING, "the verdict waits for every rank's end"
    control_plane.change(gangs.dispatch, number, ev.NodeLost(1, "node-1 is gone"))
    nodes.deaf_to_stop = False
    assert caller.result(call_id) == "second try"
    assert (only_input(control_plane).user_failures, only_input(control_plane).infra_failures) == (0, 1)


def test_the_error_of_a_silent_death_has_the_ranks_last_lines_and_what_the_others_did(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(3)

    async def die_at_step_9(rank: FakeRank, item: Any) -> None:
        if rank.prepare.rank != 1:
            await asyncio.sleep(3600)
        for step in range(10):
            rank.write(f"step {step}\n")
        raise Died(code=1)

    nodes.program = die_at_step_9
    caller = Caller(control_plane)
    with pytest.raises(Failed) as failed:
        caller.result(caller.call(caller.function(size=3, gpu=GPUS)))
    own, *said = str(failed.value).splitlines()
    assert own.startswith("rank 1 on node ") and own.endswith("exited with code 1")
    assert said[:6] == ["last lines of its log:", *(f"  step {step}" for step in range(5, 10))]
    assert [line.partition(" (")[0] for line in said[6:]] == ["rank 0", "rank 2"]
    (shown,) = until(lambda: [line for line in log_lines(control_plane, caller.app_id) if line.startswith("cluster cu-")])
    assert shown.endswith(f"failed: {own}")


def test_case_55_a_failing_import_is_the_users_at_once_and_its_retries_count(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    tried: list[str] = []

    async def dies(rank: FakeRank) -> None:
        tried.append(rank.prepare.environment["PHALANX_ATTEMPT"])
        error = ImportError("no torch")
        result = Result(status=Result.GENERIC_STATUS_FAILURE, exception=repr(error), data=pickle.dumps(error))
        await rank.rpc("TaskResult", api_pb2.TaskResultRequest(result=result))
        raise Died()

    nodes.on_import = dies
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(retry_policy=retries(1)))
    until(lambda: waits_for_its_retry(control_plane))
    control_plane.advance(RETRY_MS)
    with pytest.raises(Failed) as failed:
        caller.result(call_id)
    assert isinstance(pickle.loads(failed.value.data), ImportError)
    assert tried == ["1", "2"]
    until(lambda: not control_plane.server.gangs.running)


def test_a_function_whose_starts_crash_three_times_rests_and_says_why(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.on_import = crash
    caller = Caller(control_plane)
    function_id = caller.function()
    for _ in range(3):
        with pytest.raises(Failed, match="killed by signal 11"):
            caller.result(caller.call(function_id))
        until(lambda: not control_plane.server.gangs.running)
    starts = len(nodes.starts())
    call_id = caller.call(function_id)
    planning = control_plane.server.planning
    ((_, reason),) = until(lambda: control_plane.call(planning.waiting))
    assert reason.code == "backoff" and reason.text("why").startswith("its last 3 starts failed before they took an input, on node-")
    assert " (the fleet has 2 places for it now): the container on node node-" in reason.text("why")
    assert len(nodes.starts()) == starts
    nodes.on_import = go_on
    control_plane.advance(1_100)
    assert caller.result(call_id) == 0
    assert not control_plane.server.world[CrashedStarts]


async def crash(rank: FakeRank) -> None:
    raise Died(signal=11)


async def go_on(rank: FakeRank) -> None:
    return None


def test_a_preempted_cluster_keeps_its_place_and_runs_again(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)

    async def first_waits(rank: FakeRank, item: Any) -> str:
        if item.retry_count == 0:
            await asyncio.sleep(3600)
        return rank.prepare.environment["PHALANX_LAST_END"]

    nodes.program = first_waits
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=2, gpu=GPUS))
    until(lambda: len(nodes.ran) == 2)
    before = only_input(control_plane).created_ms
    gangs = control_plane.server.gangs
    control_plane.change(gangs.dispatch, next(iter(gangs.running)), ev.StopAsked(Cause.PREEMPTED, "its nodes were wanted for fc-9"))
    assert caller.result(call_id) == "its nodes were wanted for fc-9"
    assert sorted(stop.signal for stop in nodes.starts("stop")) == [2, 2]
    assert only_input(control_plane).created_ms == before and only_input(control_plane).excluded_nodes == []


def test_case_46_a_rank_that_ignores_its_interrupt_is_killed_after_the_functions_grace(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)
    nodes.ignores_interrupts = True

    async def one_fails(rank: FakeRank, item: Any) -> int:
        if item.retry_count == 0:
            if rank.prepare.rank == 0:
                raise ValueError("no")
            await asyncio.sleep(3600)
        return item.retry_count

    nodes.program = one_fails
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu=GPUS, retry_policy=retries(1), experimental_options={"grace_period": "0.05"})
    call_id = caller.call(function_id)
    until(lambda: waits_for_its_retry(control_plane))
    control_plane.advance(RETRY_MS)
    assert caller.result(call_id) == 1
    assert [(stop.rank, stop.grace_ms) for stop in nodes.starts("stop")] == [(1, 50)]
    assert {prepare.grace_ms for prepare in nodes.starts("prepare")} == {50}


def test_options_that_are_no_numbers_are_refused_when_the_function_is_made(control_plane: ControlPlane) -> None:
    caller = Caller(control_plane)
    with pytest.raises(Exception, match=r"experimental_options on 'work': grace_period='soon': a number of seconds from 0 to 3600"):
        caller.function(experimental_options={"grace_period": "soon"})


def test_the_fleets_owner_may_allow_longer_timeouts(control_plane: ControlPlane) -> None:
    caller = Caller(control_plane)
    week = 7 * 86_400
    with pytest.raises(Exception, match=f"startup_timeout={week} on 'work': from 1 to 86400 seconds"):
        caller.function(startup_timeout_secs=week)
    control_plane.config.max_timeout_s = 0
    caller.function(startup_timeout_secs=week)


def test_refusals_of_one_node_cost_the_waiting_input_a_restart(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(3)
    nodes.refuse = lambda p: pb.Refusal(code="disk", sentence="no space: need 10 GiB, have 1 GiB") if p.node_id == "node-0" else None
    caller = Caller(control_plane)
    assert caller.result(caller.call(caller.function(size=2, gpu=GPUS))) == 0
    assert only_input(control_plane).infra_failures == 1 and only_input(control_plane).excluded_nodes == ["node-0"]
