"""Calls that work until the test says so, and what a test wants to know of them: for stories about who gets which nodes when."""

from __future__ import annotations

import asyncio
from typing import Any

from phalanx.model.cluster import Assignment, Cause, Member
from phalanx.model.work import Function, Input
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet, FakeRank

GPUS = "H100:8"


class Work:
    """Ranks stay in their input until the test lets their function go on, by its name; who is interrupted stops."""

    def __init__(self, fleet: FakeFleet) -> None:
        self.fleet = fleet
        self.done: set[str] = set()
        self.changed = asyncio.Condition()
        fleet.program = self

    async def __call__(self, rank: FakeRank, item: Any) -> str:
        name = rank.prepare.function_name
        async with self.changed:
            await self.changed.wait_for(lambda: name in self.done)
        return name

    def finish(self, *names: str) -> None:
        async def finish() -> None:
            async with self.changed:
                self.done.update(names)
                self.changed.notify_all()

        self.fleet.control_plane.call(finish)

    def begun(self, name: str) -> int:
        """How many ranks of a function have taken an input, over all its attempts."""
        plane = self.fleet.control_plane
        return sum(name_of(plane, key[0]) == name for key, _, _ in self.fleet.ran)


def name_of(plane: ControlPlane, assignment: int) -> str:
    world = plane.server.world
    function_id = world[Assignment][assignment].function_id
    return str(world[Function][function_id].name)


def function(caller: Caller, name: str, size: int, priority: int = 0, **fields: Any) -> str:
    """A clustered function; `options` are more of its experimental options."""
    settings = {"timeout_secs": 86_400, "experimental_options": {"priority": str(priority)} | fields.pop("options", {})} | fields
    return caller.function(name, size=size, gpu=GPUS, clustered=True, **settings)


def item_of(plane: ControlPlane, call_id: str) -> Input:
    return plane.server.calls.inputs_of(call_id)[0]


def ended(plane: ControlPlane, cause: Cause) -> list[Assignment]:
    return [a for a in plane.server.world[Assignment].values() if a.verdict is not None and a.verdict.cause == cause]


def waiting(plane: ControlPlane) -> list[tuple[str, str]]:
    """(function, code) of what waits, in the order of the queue."""
    found = plane.call(lambda: plane.server.planning.waiting())
    return [(plane.server.world[Function][request.function_id].name, str(reason.code)) for request, reason in found]


def nodes_of(plane: ControlPlane, call_id: str) -> set[str]:
    """Where the latest attempt of a call runs."""
    number = item_of(plane, call_id).assignment
    return {m.node_id for m in plane.server.world[Member].values() if m.assignment == number}
