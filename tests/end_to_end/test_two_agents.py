"""A cluster over agents of their own, one of which is cut off: it stops its rank by itself, and only then the work starts elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.config import Config
from tests.end_to_end.live import PROGRAMS, Live
from tests.harness.clients import share_client_packages
from tests.harness.waiting import until
from tests.node.conftest import AgentProcess, two_nodes
from tests.node.cuttable import Door
from tests.node.test_leases import lives

pytestmark = [two_nodes, pytest.mark.full]
LIMITS = {"lease_ms": 6_000, "grace_ms": 2_000}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """One node, plain processes."""
    share_client_packages(tmp_path / "state")
    plane = Live(tmp_path / "state", 1, "process", **LIMITS)
    try:
        plane.up()
        yield plane
    finally:
        plane.down()


@pytest.fixture
def agents(tmp_path: Path, live: Live) -> Iterator[dict[str, tuple[AgentProcess, Door]]]:
    """Two more machines, so to say: agents with state folders and ways to the control plane of their own."""
    made = {}
    try:
        for name in ("west", "south"):
            door = Door(tmp_path / f"{name}.sock", live.paths.tasks_socket)
            agent = AgentProcess(tmp_path / name, "process", 1, options=("--node-name", name, "--tasks-socket", str(door.path)))
            Config(join_secret=Config.load(live.paths.config).join_secret).save(agent.paths.config)
            made[name] = (agent, door)
            agent.start()
        until(lambda: {"west-0", "south-0"} <= {node["node_id"] for node in live.status()["nodes"]}, 60)
        yield made
    finally:
        for agent, door in made.values():
            assert agent.stop() == 0, agent.log()
            door.cut()


def test_case_90_a_cut_off_node_ends_its_rank_and_the_cluster_starts_elsewhere(
    live: Live, agents: dict[str, tuple[AgentProcess, Door]], tmp_path: Path
) -> None:
    folder = tmp_path / "said"
    folder.mkdir()
    with live.running("run", str(PROGRAMS / "two_agents.py"), "--folder", str(folder)) as client:
        until(lambda: all((folder / f"1-{rank}").exists() for rank in range(2)), 100)
        pids = [int((folder / f"1-{rank}").read_text()) for rank in range(2)]
        name, mine = next((name, pid) for pid in pids for name in agents if f"/{name}/" in os.readlink(f"/proc/{pid}/cwd"))
        agent, door = agents[name]
        door.cut()
        until(lambda: not lives(mine), 60)
        assert "over the lease of 6 s" in agent.log()
        until(lambda: all((folder / f"2-{rank}").exists() for rank in range(2)), 100)
        assert not any(lives(pid) for pid in pids)      # never both attempts
        door.mend()
        until(lambda: next(n for n in live.status()["nodes"] if n["node_id"] == f"{name}-0")["state"] == "up", 60)
        (folder / "finish").touch()
        assert client.finish() == 0, client.lines
    assert '## attempt "2"' in client.lines
