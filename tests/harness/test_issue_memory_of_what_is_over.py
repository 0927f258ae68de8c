"""Nothing in memory grows with what is finished. Found by a simulated winter: two sets of the server's did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.model.app import App
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.waiting import until

DAY_MS = 24 * 3_600_000


def test_purged_apps_and_their_silent_ranks_are_forgotten(control_plane: ControlPlane, fleet: Callable[..., Any]) -> None:
    fleet(1)
    server = control_plane.server
    caller = Caller(control_plane)
    caller.result(caller.call(caller.function()))
    caller.stop()
    until(lambda: server.logs._silent and server.world[App][caller.app_id].drained)
    assert caller.app_id in server.planning._demands._states
    for _ in range(9):
        control_plane.advance(DAY_MS)
    assert until(lambda: caller.app_id not in server.world[App])
    control_plane.advance(DAY_MS)
    assert not server.logs._silent and caller.app_id not in server.planning._demands._states
