"""Real agents that lose the control plane, each other, or their lives: whose ranks go on and whose stop (design rule 3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.config import Config
from phalanx.node.peers import parse_address
from phalanx.protocol import agent_pb2 as pb

from .conftest import AgentProcess, running, two_nodes
from .cuttable import Door, Link
from .fake_server import FakeServer

pytestmark = two_nodes
LEASE_MS, SILENT_MS, OUTAGE_MS = 6_000, 2_000, 3_600_000
LIVES_ON = ("/bin/sh", "-c", "echo $$; exec sleep 1000")


class Fleet:
    """Three agents with one node each: east-0, west-0, south-0, in the order of ranks."""

    def __init__(self, folder: Path, server: FakeServer) -> None:
        self.server = server
        server.lease_ms, server.silent_ms, server.outage_limit_ms = LEASE_MS, SILENT_MS, OUTAGE_MS
        self.agents, self.doors, self.links = [], [], {}
        for name in ("east", "west", "south"):
            (folder / name).mkdir()
            door = Door(folder / f"{name}.sock", server.path)
            self.doors.append(door)
            self.agents.append(AgentProcess(folder / name, "process", 1, options=(
                "--gpus", "0", "--node-name", name, "--tasks-socket", str(door.path))))

    @property
    def nodes(self) -> list[str]:
        return ["east-0", "west-0", "south-0"]

    def start(self) -> None:
        for agent in self.agents:
            agent.start()
        self.server.until(lambda: {n.node_id for r in self.server.registers for n in r.nodes} >= set(self.nodes), self.log)
        self.ids = [self.register(rank).agent_id for rank in range(3)]
        addresses = [parse_address(self.register(rank).peer_address) for rank in range(3)]
        for one, other in ((0, 1), (0, 2), (1, 2)):
            link = Link(addresses[one], addresses[other])
            self.links[one, other] = self.links[other, one] = link
        for rank in range(3):
            self.server.prepare(1, rank, size=3, node_id=self.nodes[rank], command=LIVES_ON, grace_ms=1000)
        for rank in range(3):
            peers = [pb.Peer(rank=r, node_id=self.nodes[r], agent_id=self.ids[r], address=(
                self.links[rank, r].facing(addresses[rank]) if r != rank else "")) for r in range(3)]
            self.server.send(self.nodes[rank], peers=pb.Peers(assignment=1, size=3, peers=peers))
            self.server.send(self.nodes[rank], start=pb.Start(assignment=1, rank=rank))
        self.pids = [int(self.server.wait(1, rank, lambda seen: bool(seen.text())).text()) for rank in range(3)]

    def stop(self) -> None:
        for door in self.doors:
            door.cut()
        for link in set(self.links.values()):
            link.close()
        assert [agent.stop() for agent in self.agents] == [0, 0, 0], self.log()

    def isolate(self, rank: int) -> None:
        """From the other agents."""
        for pair, link in self.links.items():
            if rank in pair:
                link.is_cut = True

    def register(self, rank: int) -> pb.Register:
        return next(r for r in reversed(self.server.registers) if r.nodes[0].node_id == self.nodes[rank])

    def lives(self, rank: int) -> bool:
        return lives(self.pids[rank])

    def ends(self, rank: int) -> None:
        self.server.until(lambda: not self.lives(rank), self.log)

    def log(self) -> str:
        return "\n".join(agent.log() for agent in self.agents)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def fleet(tmp_path: Path, server: FakeServer) -> Iterator[Fleet]:
    made = Fleet(tmp_path, server)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_case_38_without_a_control_plane_the_majority_goes_on_and_who_is_alone_stops(fleet: Fleet, server: FakeServer) -> None:
    server.down()
    fleet.isolate(0)
    fleet.ends(0)
    assert fleet.lives(1) and fleet.lives(2)
    fleet.isolate(2)        # now everybody is alone: two more leases
    fleet.ends(1)
    fleet.ends(2)
    server.up()
    for rank in range(3):
        fenced = server.wait(1, rank, lambda seen: bool(seen.exited)).exited[0].fenced
        assert "no word from the control plane for" in fenced and "of 3 ranks are on nodes that reach each other" in fenced, fenced


def test_case_90_an_agent_that_is_cut_off_alone_stops_its_rank_though_its_peers_reach_it(fleet: Fleet, server: FakeServer) -> None:
    """They reach the control plane, so it starts the work elsewhere: nobody may run it twice."""
    fleet.doors[2].cut()
    fleet.ends(2)
    assert fleet.lives(0) and fleet.lives(1)
    fleet.doors[2].mend()
    fenced = server.wait(1, 2, lambda seen: bool(seen.exited)).exited[0].fenced
    assert "another agent of the gang reaches it" in fenced
    assert fleet.lives(0) and fleet.lives(1)


def test_an_agent_that_starts_again_goes_on_with_its_peers(fleet: Fleet, server: FakeServer) -> None:
    """The control plane has been away for longer than a lease: what the shims and the folder know must do until the peers are heard."""
    server.down()
    fleet.isolate(0)
    fleet.ends(0)
    fleet.agents[1].kill()
    fleet.agents[1].start()
    server.until(lambda: fleet.agents[1].log().count("runtime process") == 2, fleet.log)
    registers = len(server.registers)
    server.up()
    server.until(lambda: {n.node_id for r in server.registers[registers:] for n in r.nodes} == set(fleet.nodes), fleet.log)
    assert [fleet.register(rank).adopted[0].ended for rank in range(3)] == [True, False, False]
    assert fleet.lives(1) and fleet.lives(2)


# ---------------------------------------------------------------- one agent


@pytest.fixture
def alone(state: Path, server: FakeServer) -> Iterator[AgentProcess]:
    server.lease_ms, server.silent_ms, server.outage_limit_ms = 3_000, 1_000, 5_000
    yield from running(AgentProcess(state, "process"), server)


def test_a_cluster_on_one_agent_stops_at_the_outage_limit(alone: AgentProcess, server: FakeServer) -> None:
    seen = server.run(1, *LIVES_ON, size=1, grace_ms=1000)
    server.wait(1, 0, lambda seen: bool(seen.text()))
    server.down()
    server.until(lambda: not lives(int(seen.text())), alone.log)
    server.up()
    exited = server.wait(1, 0, lambda seen: bool(seen.exited)).exited[0]
    assert exited.signal == 2 and "over the outage limit of 5 s" in exited.fenced


def test_a_shim_whose_agent_is_gone_stops_its_container_itself(alone: AgentProcess, server: FakeServer) -> None:
    """Nobody is left to start the agent again: the control plane counts on the end of what ran there."""
    seen = server.run(1, *LIVES_ON, size=1, grace_ms=1000)
    server.wait(1, 0, lambda seen: bool(seen.text()))
    before = server.heartbeats
    server.until(lambda: server.heartbeats > before + 6)        # the shim has its lease by then
    alone.kill()
    server.until(lambda: not lives(int(seen.text())))
    alone.start()
    exited = server.wait(1, 0, lambda seen: bool(seen.exited)).exited[0]
    assert exited.fenced == "the agent of its node was gone, and nobody could say that it may go on"


def test_lowered_limits_hold_for_the_shims_before_the_agent_says_that_it_has_heard(alone: AgentProcess, server: FakeServer) -> None:
    server.outage_limit_ms, shorter_ms = OUTAGE_MS, server.outage_limit_ms
    server.down()
    server.up()
    server.until(lambda: len(server.registers) == 2, alone.log)
    seen = server.run(1, *LIVES_ON, size=1, grace_ms=1000)
    server.wait(1, 0, lambda seen: bool(seen.text()))
    server.down()
    server.outage_limit_ms, before = shorter_ms, server.heartbeats
    server.up()
    server.until(lambda: server.heartbeats > before, alone.log)
    alone.kill()
    server.until(lambda: not lives(int(seen.text())))
    alone.start()
    assert server.wait(1, 0, lambda seen: bool(seen.exited)).exited[0].fenced


def test_a_short_absence_of_the_agent_stops_nothing(alone: AgentProcess, server: FakeServer) -> None:
    server.outage_limit_ms = 600_000
    seen = server.run(1, *LIVES_ON, size=1)
    server.wait(1, 0, lambda seen: bool(seen.text()))
    alone.kill()
    alone.start()
    server.until(lambda: len(server.registers) == 2, alone.log)
    assert lives(int(seen.text())) and not seen.exited


def test_an_address_that_no_peer_could_reach_is_refused(state: Path) -> None:
    agent = AgentProcess(state, "process")
    Config(join_secret="let me in", peer_listen="0.0.0.0:7000").save(agent.paths.config)
    agent.start()
    assert agent.process is not None and agent.process.wait(60) == 78
    agent.process = None
    assert "name the one address at which the other agents reach this machine" in agent.log()
