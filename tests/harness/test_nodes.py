"""Taking nodes out of service and back, as the platform engineer does it: the real commands on a real server, fake agents behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner

from phalanx.cli import control_plane as commands
from phalanx.cli.control_plane import Running
from phalanx.cli.node import node
from phalanx.model.cluster import Assignment, Cause, Member
from tests.harness.callers import Caller, Failed
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet, FakeRank
from tests.harness.waiting import until

GPUS = "H100:8"


@pytest.fixture
def phalanx(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`phalanx node …` as the shell runs it: phalanx("drain", "node-1") gives its exit code and what it prints."""
    running = Running(control_plane.paths, control_plane.config, f"127.0.0.1:{control_plane.port}")
    monkeypatch.setattr(commands, "find", lambda paths: running)

    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(node, words)
        return result.exit_code, result.output

    return run


class Gate:
    """A program whose ranks stay in their input until the test lets them out; it notes who was interrupted."""

    def __init__(self, fleet: FakeFleet) -> None:
        self.opened = asyncio.Event()
        self.interrupted: list[str] = []
        fleet.program = self

    async def __call__(self, rank: FakeRank, item: Any) -> int:
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.interrupted.append(rank.prepare.node_id)
            raise
        return rank.prepare.rank


def states(plane: ControlPlane) -> dict[str, str]:
    return {n["node_id"]: n["state"] for n in ask(plane)["nodes"]}


def ask(plane: ControlPlane) -> dict[str, Any]:
    return Running(plane.paths, plane.config, f"127.0.0.1:{plane.port}").status()


def reasons(plane: ControlPlane) -> list[str]:
    return [w["reason"]["sentence"] for w in ask(plane)["waiting"]]


def nodes_of(plane: ControlPlane, assignment: int) -> set[str]:
    return {m.node_id for m in plane.server.world[Member].values() if m.assignment == assignment}


def test_a_cordoned_node_finishes_its_work_and_takes_none(control_plane: ControlPlane, fleet: Any, phalanx: Any) -> None:
    gate = Gate(fleet(2))
    caller = Caller(control_plane)
    running = caller.call(caller.function("first", size=2, gpu=GPUS))
    until(lambda: ask(control_plane)["clusters"] and ask(control_plane)["clusters"][0]["inputs"])
    code, said = phalanx("cordon", "node-1", "--reason", "disk")
    assert code == 0 and said.startswith("node-1 takes no new work; still there: cu-")
    waiting = caller.call(caller.function("second", size=2, gpu=GPUS))
    control_plane.call(gate.opened.set)
    assert caller.result(running) == 0 and gate.interrupted == []
    until(lambda: any("1 cordoned (by hand: disk)" in said for said in reasons(control_plane)))
    assert phalanx("uncordon", "node-1") == (0, "node-1 takes work again\n")
    assert caller.result(waiting) == 0


def test_a_drained_node_is_empty_when_its_cluster_has_finished_what_it_had(control_plane: ControlPlane, fleet: Any, phalanx: Any) -> None:
    nodes = fleet(4)
    gate = Gate(nodes)
    caller = Caller(control_plane)
    function = caller.function(size=2, gpu=GPUS, max_concurrent_inputs=1)
    calls = [caller.call(function) for _ in range(3)]      # two run, the third waits for either
    until(lambda: len(nodes.ran) == 4)
    before = {rank.prepare.node_id: key[0] for key, rank in nodes.ranks.items()}
    code, said = phalanx("drain", "node-0", "--reason", "new disk")
    assert code == 0 and said.startswith("node-0 is draining, until the end of cu-")
    assert states(control_plane)["node-0"] == "draining (by hand: new disk)"
    control_plane.call(gate.opened.set)
    assert [caller.result(call) for call in calls] == [0, 0, 0] and gate.interrupted == []
    until(lambda: states(control_plane)["node-0"] == "drained (by hand: new disk)")
    third = next(key[0] for key, _, _ in nodes.ran[4:])
    assert "node-0" not in nodes_of(control_plane, third), "it took no more"
    assert third != before["node-0"]


def test_a_drain_ends_by_the_functions_time_out_at_the_latest(control_plane: ControlPlane, fleet: Any, phalanx: Any) -> None:
    nodes = fleet(2)
    Gate(nodes)
    caller = Caller(control_plane)
    call = caller.call(caller.function(size=2, gpu=GPUS, timeout_secs=60))
    until(lambda: len(nodes.ran) == 2)
    phalanx("drain", "node-0")
    control_plane.advance(59_000)
    assert states(control_plane)["node-0"] == "draining (by hand)"
    control_plane.advance(2_000)
    until(lambda: states(control_plane)["node-0"] == "drained (by hand)")
    with pytest.raises(Failed):
        caller.result(call)


def test_an_idle_cluster_on_a_node_that_is_drained_ends_at_once(control_plane: ControlPlane, fleet: Any, phalanx: Any) -> None:
    fleet(2)
    caller = Caller(control_plane)
    assert caller.result(caller.call(caller.function(size=2, gpu=GPUS))) == 0
    code, said = phalanx("drain", "node-1", "--wait")
    assert (code, said) == (0, "node-1 is drained\n")
    assert states(control_plane) == {"node-0": "up", "node-1": "drained (by hand)"}


def test_case_99_draining_now_interrupts_all_four_ranks_together_and_the_input_runs_again_elsewhere(
    control_plane: ControlPlane, fleet: Any, phalanx: Any
) -> None:
    nodes = fleet(5)
    gate = Gate(nodes)
    caller = Caller(control_plane)
    call = caller.call(caller.function(size=4, gpu=GPUS))
    until(lambda: len(nodes.ran) == 4)
    first = nodes.ran[0][0][0]
    victim = sorted(nodes_of(control_plane, first))[1]
    assert phalanx("drain", victim, "--now", "--reason", "fan")[0] == 0
    until(lambda: len(nodes.ran) == 8)
    stops = [message.stop for message in nodes.heard if message.WhichOneof("message") == "stop"]
    assert sorted(stop.rank for stop in stops) == [0, 1, 2, 3] and {(stop.signal, stop.reason) for stop in stops} == {(2, "preempted")}
    order = [message.WhichOneof("message") for message in nodes.heard]
    at = order.index("stop")
    assert order[at : at + 4] == ["stop"] * 4, "all four are told before anything else is, so before any of them has ended"
    second = nodes.ran[4][0][0]
    assert victim not in nodes_of(control_plane, second) and len(nodes_of(control_plane, second)) == 4
    until(lambda: states(control_plane)[victim] == "drained (by hand: fan)")
    verdict = control_plane.server.world[Assignment][first].verdict
    assert verdict.cause == Cause.PREEMPTED and verdict.sentence == f"node {victim} is being drained: fan"
    control_plane.call(gate.opened.set)
    assert caller.result(call) == 0
    item = next(iter(control_plane.server.calls.inputs_of(call)))
    assert (item.user_failures, item.attempt) == (0, 2), "not charged to the user's retries"


def test_a_decision_outlives_the_server_and_the_agent(control_plane: ControlPlane, fleet: Any, phalanx: Any) -> None:
    nodes = FakeFleet(control_plane, 2)
    nodes.start()
    phalanx("drain", "node-0", "--reason", "disk")
    nodes.stop()
    control_plane.restart()
    fleet(2)
    code, text = phalanx("list", "--json")
    listed = {n["node_id"]: n for n in json.loads(text)}
    assert listed["node-0"]["state"] == "drained (by hand: disk)" and listed["node-1"]["state"] == "up"
    assert "@" in listed["node-0"]["decided_by"] and listed["node-0"]["decided_ms"] > 0
    assert "drained (by hand:" in phalanx("list")[1]


def test_a_node_is_removed_when_it_is_drained_and_comes_back_as_it_was_left(
    control_plane: ControlPlane, fleet: Any, phalanx: Any
) -> None:
    nodes = fleet(2)
    gate = Gate(nodes)
    caller = Caller(control_plane)
    call = caller.call(caller.function(size=1, gpu=GPUS, clustered=True))
    until(lambda: nodes.ran)
    busy = next(iter(nodes.ranks.values())).prepare.node_id
    code, said = phalanx("remove", busy)
    assert code == 1 and f"node '{busy}' is serving, and cu-" in said and f"`phalanx node drain {busy}` first" in said
    phalanx("drain", busy)
    assert "wait until it is drained" in phalanx("remove", busy)[1]
    control_plane.call(gate.opened.set)
    assert caller.result(call) == 0
    until(lambda: states(control_plane)[busy] == "drained (by hand)")
    assert phalanx("remove", busy) == (0, f"{busy} is removed\n")
    assert busy not in states(control_plane)
    nodes.lose_agent()
    nodes.start()
    assert states(control_plane)[busy] == "drained (by hand)"
    assert phalanx("uncordon", busy) == (0, f"{busy} takes work again\n")


def test_a_node_that_is_away_is_removed_and_what_it_ran_only_when_it_is_said_to_be_dead(
    control_plane: ControlPlane, fleet: Any, phalanx: Any
) -> None:
    lost, others = fleet(1, prefix="lost"), fleet(1, prefix="spare", gpu_count=0, gpu_type="")
    Gate(lost)
    caller = Caller(control_plane)
    call = caller.call(caller.function(size=1, gpu=GPUS, clustered=True))
    until(lambda: lost.ran)
    lost.stop()
    until(lambda: states(control_plane)["lost-0"].startswith("down"))
    code, said = phalanx("remove", "lost-0")
    assert code == 1 and "may still run there" in said and "--dead" in said
    assert phalanx("remove", "lost-0", "--dead") == (0, "lost-0 is removed\n")
    assert list(states(control_plane)) == ["spare-0"]
    item = next(iter(control_plane.server.calls.inputs_of(call)))
    assert (item.state, item.infra_failures, item.last_end) == ("pending", 1, "node lost-0 of rank 0 was removed as dead")
    assert others.ran == []


def test_a_name_that_is_not_known_is_answered_with_those_that_are(control_plane: ControlPlane, fleet: Any, phalanx: Any) -> None:
    assert "No node has joined this fleet yet" in phalanx("drain", "node-9")[1]
    fleet(2)
    for command in ("cordon", "drain", "uncordon", "remove"):
        code, said = phalanx(command, "node-9")
        assert code == 1 and said == "Error: node 'node-9' not found. The fleet has node-0, node-1\n"
    phalanx("drain", "node-1")
    assert "is drained already, and takes no new work" in phalanx("cordon", "node-1")[1]
