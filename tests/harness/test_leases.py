"""Agents are cut off, freeze, come back late or as others: when their nodes are lost, and what an old one may still say (design rule 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from phalanx.config import Config
from phalanx.core import events as ev
from phalanx.core.lease import MARGIN_MS
from phalanx.model.cluster import Assignment, Cause, Member, MemberState, Phase
from phalanx.model.lease import GrantedLimits
from phalanx.model.node import NodeRecord
from phalanx.model.work import Input, InputState
from phalanx.protocol import agent_pb2 as pb
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet, FakeRank
from tests.harness.waiting import until

GPUS = "H100:8"
CONFIG = Config()
SECOND = 1000
LOST_MS = CONFIG.lease_ms + MARGIN_MS + CONFIG.grace_ms
OUTAGE_LOST_MS = CONFIG.outage_limit_ms + MARGIN_MS + CONFIG.grace_ms

Fleet = Callable[..., FakeFleet]


async def work_on(rank: FakeRank, item: Any) -> None:
    await asyncio.sleep(3600)


def pass_time(control_plane: ControlPlane, milliseconds: int, *beating: FakeFleet) -> None:
    """So much time passes for the server, second by second; meanwhile the heartbeats of these fleets arrive."""
    leases = control_plane.server.leases

    async def passing() -> None:
        ends = leases.patience_ms + milliseconds
        while leases.patience_ms < ends:
            control_plane.clock.advance(SECOND)
            await control_plane.server.settled()
            for fleet in beating:
                await beaten(fleet)

    control_plane.call(passing)


def beat_through(control_plane: ControlPlane, fleet: FakeFleet) -> None:
    """Two heartbeats that are answered: the second knows that the first was."""
    for _ in range(2):
        control_plane.call(beaten, fleet)


async def beaten(fleet: FakeFleet) -> None:
    before = len(fleet.starts("beat_answer"))
    fleet.beat()
    while len(fleet.starts("beat_answer")) == before:      # noqa: ASYNC110 (filled in another task)
        await asyncio.sleep(0.001)


def two_agents(fleet: Fleet, nodes: int = 1) -> tuple[FakeFleet, FakeFleet]:
    """Rank 0 is on the first; both have as many nodes."""
    fleets = fleet(nodes, prefix="a"), fleet(nodes, prefix="b")
    for one in fleets:
        one.program = work_on
    return fleets


def gang_of(control_plane: ControlPlane) -> Any:
    (gang,) = control_plane.server.gangs.running.values()
    return gang


def running_on(control_plane: ControlPlane, *fleets: FakeFleet, size: int = 2) -> tuple[Caller, str]:
    caller = Caller(control_plane)
    call_id = caller.call(caller.function(size=size, gpu=GPUS))
    until(lambda: sum(len(fleet.ran) for fleet in fleets) == size)
    for fleet in fleets:
        beat_through(control_plane, fleet)
    return caller, call_id


def is_lost(control_plane: ControlPlane, rank: int, assignment: int = 1) -> bool:
    return bool(control_plane.server.world[Member][(assignment, rank)].node_lost)


@pytest.mark.parametrize("cut", ["a", "b"], ids=["rank 0", "rank 1"])
def test_case_90_a_node_that_is_cut_off_is_lost_when_it_must_have_stopped_and_the_gang_starts_elsewhere(
    control_plane: ControlPlane, fleet: Fleet, cut: str
) -> None:
    """Its agent stops its ranks at the end of the lease; not before lease, margin and grace are over is anything started again."""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    gone, stays, rank = (one, other, 0) if cut == "a" else (other, one, 1)
    gone.lose_agent()
    spare = fleet(1, prefix="c")
    spare.program = work_on
    pass_time(control_plane, LOST_MS - 6 * SECOND, stays, spare)
    assert not is_lost(control_plane, rank)
    pass_time(control_plane, 8 * SECOND, stays, spare)
    assert is_lost(control_plane, rank)
    until(lambda: control_plane.server.world[Assignment][1].verdict)
    verdict = control_plane.server.world[Assignment][1].verdict
    assert verdict.cause == Cause.NODE and verdict.rank == rank and not verdict.user_fault
    assert "s: over its limit of 30 s, 10 s and the grace of 30 s" in verdict.sentence
    until(lambda: control_plane.server.world[Assignment][1].phase == Phase.ENDED)
    pass_time(control_plane, 10 * SECOND, stays, spare)
    until(lambda: len(spare.ran) == 1)
    assert {member.node_id for member in gang_of(control_plane).members} == {stays.facts[0].node_id, "c-0"}


def test_case_38_the_other_ranks_of_a_lost_node_end_and_only_the_lease_is_waited_for(control_plane: ControlPlane, fleet: Fleet) -> None:
    """Rank 0's node dies. (That rank 1 ends by itself where the server can't reach it either: tests/node/test_leases.py.)"""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    one.stop()
    pass_time(control_plane, LOST_MS + 4 * SECOND, other)
    until(lambda: control_plane.server.world[Assignment][1].phase == Phase.ENDED)
    assert not other.ranks


def test_a_gang_whose_agents_are_all_away_has_the_outage_limit(control_plane: ControlPlane, fleet: Fleet) -> None:
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    one.lose_agent()
    other.lose_agent()
    pass_time(control_plane, OUTAGE_LOST_MS - 6 * SECOND)
    assert not is_lost(control_plane, 0) and not is_lost(control_plane, 1)
    pass_time(control_plane, 8 * SECOND)
    assert is_lost(control_plane, 0) and is_lost(control_plane, 1)


def test_a_cluster_on_one_agent_has_the_outage_limit(control_plane: ControlPlane, fleet: Fleet) -> None:
    one = fleet(2)
    one.program = work_on
    running_on(control_plane, one)
    one.lose_agent()
    pass_time(control_plane, LOST_MS + 60 * SECOND)
    assert not is_lost(control_plane, 0)


def test_the_limit_counts_from_the_control_planes_own_return(control_plane: ControlPlane, fleet: Fleet) -> None:
    """It was away for 14 minutes, and its fleet comes back two minutes later: nothing is lost, and the same ranks work on."""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    tasks = {key: rank.prepare.task_id for key, rank in (one.ranks | other.ranks).items()}
    control_plane.stop()
    control_plane.clock.away(14 * 60 * SECOND)
    one._session = other._session = None
    control_plane.start()
    pass_time(control_plane, 120 * SECOND)
    assert not is_lost(control_plane, 0) and not is_lost(control_plane, 1)
    assert {(m.assignment, m.rank): m.task_id for m in control_plane.server.world[Member].values()} == tasks


def restart_with(control_plane: ControlPlane, lease_ms: int, outage_limit_ms: int, back: list[FakeFleet], away: list[FakeFleet]) -> None:
    """The owner changes the limits, and the grace for what starts from now on."""
    for agent in (*back, *away):
        agent.lose_agent()
    control_plane.stop()
    control_plane.config.lease_ms, control_plane.config.outage_limit_ms, control_plane.config.grace_ms = lease_ms, outage_limit_ms, SECOND
    for agent in (*back, *away):
        agent.outlive()
    control_plane.start()
    for agent in back:
        agent.start()


@pytest.mark.parametrize(("lease_ms", "outage_limit_ms"), [(12_000, 60_000), (120_000, 3_600_000)], ids=["lowered", "raised"])
def test_an_agent_that_was_away_while_limits_changed_has_those_that_it_knows(
    control_plane: ControlPlane, fleet: Fleet, lease_ms: int, outage_limit_ms: int
) -> None:
    """The other agent is back, so it is the lease that counts: the one that the absent agent was granted, and the grace of its ranks."""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    beat_through(control_plane, other)
    other.lose_agent()
    for _ in range(2):      # the second restart forgets nothing
        restart_with(control_plane, lease_ms, outage_limit_ms, [one], [other])
    pass_time(control_plane, LOST_MS - 6 * SECOND, one)
    assert not is_lost(control_plane, 1), "it may still run"
    pass_time(control_plane, 12 * SECOND, one)
    assert is_lost(control_plane, 1)


def test_an_agent_that_has_heard_of_the_new_limits_goes_by_them(control_plane: ControlPlane, fleet: Fleet) -> None:
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    restart_with(control_plane, 12_000, 60_000, [one, other], [])
    for agent in (one, other):
        beat_through(control_plane, agent)
    other.lose_agent()
    pass_time(control_plane, (12 + 10 + 30 - 6) * SECOND, one)
    assert not is_lost(control_plane, 1)
    pass_time(control_plane, 10 * SECOND, one)
    assert is_lost(control_plane, 1)
    limits = control_plane.server.world[GrantedLimits]
    assert {granted.lease_ms for granted in limits.values()} == {12_000}


def test_an_absence_of_the_process_itself_is_charged_to_nobody(control_plane: ControlPlane, fleet: Fleet) -> None:
    """Twenty minutes in which the loop did not turn are one look: what agents sent meanwhile is read before the next."""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    control_plane.advance(20 * 60 * SECOND)
    pass_time(control_plane, 3 * SECOND, one, other)
    assert not is_lost(control_plane, 0)
    assert all(control_plane.server.agents.is_connected(node) for node in ("a-0", "b-0"))


def test_case_15_a_node_that_is_switched_off_is_not_chosen_once_heartbeats_are_missed(control_plane: ControlPlane, fleet: Fleet) -> None:
    """Its connection is still open: nobody said good-bye. A call that got it before moves on when it is lost (case 90)."""
    one, other = two_agents(fleet)
    one.silent = True
    pass_time(control_plane, 9 * SECOND, other)
    assert not control_plane.server.agents.is_connected("a-0")
    caller = Caller(control_plane)
    caller.call(caller.function(size=1, gpu=GPUS, clustered=True))
    until(lambda: len(other.ran) == 1)
    waits = caller.call(caller.function("second", size=1, gpu=GPUS, clustered=True))
    until(lambda: control_plane.server.planning.waits)
    assert not one.starts("prepare")
    one.silent = False
    one.program = other.program
    beat_through(control_plane, one)
    until(lambda: len(one.ran) == 1)
    caller.cancel(waits)


def test_case_86_missed_heartbeats_stop_nothing(control_plane: ControlPlane, fleet: Fleet) -> None:
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    one.silent = True
    pass_time(control_plane, 35 * SECOND, other)
    assert not is_lost(control_plane, 0)
    one.silent = False
    pass_time(control_plane, 60 * SECOND, one, other)
    assert gang_of(control_plane).assignment.phase == Phase.RUNNING
    assert not one.starts("stop") and not other.starts("stop")


def test_case_34_a_node_that_is_unreachable_while_its_rank_ends_is_free_after_the_lease(control_plane: ControlPlane, fleet: Fleet) -> None:
    """The gang is being stopped, and the agent that should confirm it is gone: its holds don't stay for ever."""
    one, other = two_agents(fleet)
    caller, _ = running_on(control_plane, one, other)
    one.deaf_to_stop = True
    caller.stop()
    until(lambda: one.starts("stop"))
    one.lose_agent()
    pass_time(control_plane, LOST_MS - 10 * SECOND, other)
    assert gang_of(control_plane).assignment.phase == Phase.ENDING
    pass_time(control_plane, 12 * SECOND, other)
    until(lambda: not control_plane.server.gangs.running)
    snapshot = control_plane.call(control_plane.server.planning._snapshot, ())
    assert not snapshot.holds


def test_case_44_the_late_end_of_an_old_rank_changes_nothing_of_the_new_attempt(control_plane: ControlPlane, fleet: Fleet) -> None:
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    spare = fleet(1, prefix="c")
    spare.program = work_on
    one.lose_agent()
    old = one.ranks[(1, 0)]
    pass_time(control_plane, LOST_MS + 4 * SECOND, other, spare)
    until(lambda: control_plane.server.world[Assignment][1].phase == Phase.ENDED)
    pass_time(control_plane, 10 * SECOND, other, spare)
    until(lambda: len(spare.ran) == 1 and gang_of(control_plane).assignment.phase == Phase.RUNNING)
    one.start()
    control_plane.call(old.task.cancel)
    until(lambda: old.exited is not None and (1, 0) not in one.ranks)       # said, and released as one that nobody expects
    for late in ("exited", "released", "prepared"):
        message = {"exited": pb.Exited, "released": pb.Released, "prepared": pb.Prepared}[late](assignment=1, rank=0)
        control_plane.call(lambda late=late, message=message: one.say(**{late: message}))
    beat_through(control_plane, one)
    gang = gang_of(control_plane)
    assert gang.assignment.assignment == 2 and gang.assignment.phase == Phase.RUNNING
    (item,) = control_plane.server.world[Input].values()
    assert (item.state, item.attempt) == (InputState.RUNNING, 2)


def test_case_77_a_running_container_that_nobody_expects_is_killed_and_the_expected_ones_are_kept(
    control_plane: ControlPlane, fleet: Fleet
) -> None:
    """Of an assignment that the server has never heard of: its state was restored from an older one."""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    one.lose_agent()
    stranger = FakeRank(pb.Prepare(assignment=99, rank=0, task_id="ta-stranger", node_id="a-0"), one)
    one.ranks[(99, 0)] = stranger
    one.start()
    until(lambda: (99, 0) not in one.ranks)
    assert [(release.assignment, release.rank) for release in one.starts("release")] == [(99, 0)]
    assert (1, 0) in one.ranks and not [stop for stop in one.starts("stop") if stop.assignment == 1]


def test_a_rank_that_was_taken_for_lost_and_is_back_is_killed(control_plane: ControlPlane, fleet: Fleet) -> None:
    """The verdict still waits for another rank, so it is not released yet; but it must not run."""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    other.deaf_to_stop = True
    one.lose_agent()
    pass_time(control_plane, LOST_MS + 4 * SECOND, other)
    assert is_lost(control_plane, 0)
    one.start()
    assert until(lambda: one.starts("stop"))[0].signal == 9
    control_plane.call(other.ranks[(1, 1)].task.cancel)
    until(lambda: control_plane.server.world[Assignment][1].phase == Phase.ENDED)


def test_a_rank_that_its_own_agent_stopped_is_no_fault_of_the_program(control_plane: ControlPlane, fleet: Fleet) -> None:
    """It is back before it was taken for lost, and confirms the stop: nothing has to wait any longer."""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    one.lose_agent()
    pass_time(control_plane, 45 * SECOND, other)
    one.ranks[(1, 0)].exited = pb.Exited(assignment=1, rank=0, signal=2, fenced="no word from the control plane for 30 s")
    one.start()
    verdict = until(lambda: control_plane.server.world[Assignment][1].verdict)
    assert verdict.cause == Cause.NODE and not verdict.user_fault
    assert verdict.sentence == (
        "rank 0 on node a-0 was lost: its node was cut off, and stopped it: no word from the control plane for 30 s")


def test_a_machine_that_was_started_again_is_lost_at_once(control_plane: ControlPlane, fleet: Fleet) -> None:
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    one.stop()
    one.ranks.clear()
    one.boot_id = "another boot"
    one.start()
    verdict = until(lambda: control_plane.server.world[Assignment][1].verdict)
    assert verdict.sentence == "node a-0 was started again and no longer has rank 0"


def test_an_engine_that_knows_a_node_to_be_dead_needs_no_lease(control_plane: ControlPlane, fleet: Fleet) -> None:
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    one.stop()
    control_plane.change(control_plane.server.leases.node_is_dead, "a-0", "is gone: its Slurm job ended with NODE_FAIL")
    verdict = until(lambda: control_plane.server.world[Assignment][1].verdict)
    assert verdict.sentence == "node a-0 of rank 0 is gone: its Slurm job ended with NODE_FAIL"


def test_case_74_a_rank_that_can_not_be_killed_sets_its_node_aside_and_the_gang_goes_on_elsewhere(
    control_plane: ControlPlane, fleet: Fleet
) -> None:
    """The agent gives it up a while after SIGKILL: it counts as ended, and what is left of it keeps its node out of service."""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    spare = fleet(1, prefix="c")
    spare.program = work_on
    one.deaf_to_stop = True
    one.remains = lambda release: "processes [4711] that SIGKILL does not end"
    control_plane.change(control_plane.server.gangs.dispatch, 1, ev.StopAsked(Cause.PREEMPTED, "its nodes are wanted"))
    until(lambda: one.starts("stop"))
    control_plane.call(lambda: one.say(exited=pb.Exited(
        assignment=1, rank=0, signal=9, unkillable=True, sentence="process 4711 had not ended 10 s after SIGKILL: it hangs in the kernel")))
    until(lambda: control_plane.server.world[Assignment][1].phase == Phase.ENDED)
    node = control_plane.server.world[NodeRecord]["a-0"]
    assert node.unschedulable.startswith("UNKILLABLE: ta-") and "process 4711 had not ended" in node.unschedulable
    assert control_plane.server.world[Member][(1, 0)].state == MemberState.RELEASED
    until(lambda: spare.ran)
    assert {member.node_id for member in gang_of(control_plane).members} == {"b-0", "c-0"}
    control_plane.call(lambda: one.say(node_state=pb.NodeState(node_id="a-0")))     # the disk answered at last, and the process died
    until(lambda: not control_plane.server.world[NodeRecord]["a-0"].unschedulable)


def test_case_74_what_is_gone_before_its_cluster_is_over_sets_no_node_aside(control_plane: ControlPlane, fleet: Fleet) -> None:
    """One rank's node has said that something remains, and then that it is gone, while the other rank's is still at it."""
    one, other = two_agents(fleet)
    running_on(control_plane, one, other)
    one.remains = lambda release: "processes [4711] that SIGKILL does not end"
    other.deaf_to_release = True
    control_plane.change(control_plane.server.gangs.dispatch, 1, ev.StopAsked(Cause.PREEMPTED, "its nodes are wanted"))
    until(lambda: control_plane.server.world[Member][(1, 0)].remains)
    control_plane.call(lambda: one.say(node_state=pb.NodeState(node_id="a-0")))
    control_plane.call(lambda: other.say(released=pb.Released(assignment=1, rank=1)))
    until(lambda: control_plane.server.world[Assignment][1].phase == Phase.ENDED)
    assert not control_plane.server.world[NodeRecord]["a-0"].unschedulable


def test_two_agents_can_not_have_the_same_nodes(control_plane: ControlPlane, fleet: Fleet) -> None:
    fleet(1, prefix="a")
    double = FakeFleet(control_plane, 1, prefix="a")
    double.agent_id = "another-agent"
    double.start()
    refusal = until(lambda: double.starts("welcome"))[0].refusal
    assert refusal.startswith("node a-0 is agent a-agent's") and "--node-name" in refusal
    double.stop()


def test_agents_are_told_where_their_peers_are_and_again_when_one_moves(control_plane: ControlPlane, fleet: Fleet) -> None:
    one, other = two_agents(fleet)
    for index, agent in enumerate((one, other)):
        agent.lose_agent()
        agent.peer_address = f"127.0.0.1:700{index}"
        agent.start()
    running_on(control_plane, one, other)
    told = other.starts("peers")[0]
    assert [(p.rank, p.node_id, p.agent_id, p.address) for p in told.peers] == [
        (0, "a-0", "a-agent", "127.0.0.1:7000"), (1, "b-0", "b-agent", "127.0.0.1:7001")]
    one.lose_agent()
    one.peer_address = "127.0.0.1:7002"
    one.start()
    until(lambda: other.starts("peers")[-1].peers[0].address == "127.0.0.1:7002")
