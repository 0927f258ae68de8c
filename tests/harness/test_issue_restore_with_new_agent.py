"""A backup made while a cluster ran: its restored state refused its own new agent, for the old one's ranks might still run.
Beside a cluster that was starting, its nodes took nothing of the function for 30 s."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from phalanx.config import Config
from phalanx.paths import Paths
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.test_backup import answer, phalanx
from tests.harness.waiting import until


async def never_ends(*_: Any) -> Any:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("phase", ["running", "starting"])
def test_the_agent_of_a_restored_state_gets_the_nodes_of_the_old_one(
    control_plane: ControlPlane, tmp_path: Path, elsewhere: list[str], phase: str
) -> None:
    """At once (no time passes here): what speaks against a node that was lost does not against the new one of its name."""
    control_plane.config.save(control_plane.paths.config)
    fleet = FakeFleet(control_plane, 2)
    if phase == "running":
        fleet.program = never_ends
    else:
        fleet.before_hello = never_ends
    fleet.start()
    caller = Caller(control_plane)
    running = caller.call(caller.function("hold", gpu="H100:8", size=2))
    until(lambda: [gang.assignment.phase for gang in control_plane.server.gangs.running.values()] == [phase])
    file, there = tmp_path / "backup.tar", tmp_path / "elsewhere" / "state"
    assert phalanx("backup", file, "--state", control_plane.paths.state).exit_code == 0
    fleet.stop()
    control_plane.stop()
    assert phalanx("restore", file, "--state", there, *elsewhere).exit_code == 0

    restored = ControlPlane(tmp_path / "elsewhere", Config.load(Paths(there).config))
    restored.start()
    caller.plane = restored
    nodes = FakeFleet(restored, 2)  # of the same names
    nodes.agent_id = "another agent"
    nodes.program = answer
    nodes.start()
    assert caller.result(running).startswith("answer")
    until(lambda: not restored.paths.restored.exists())
    nodes.stop()
    restored.stop()
    assert not restored.bugs
