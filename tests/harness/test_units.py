"""Who waits for a unit may give up: what it changed is acted on all the same, and a commit that fails ends the process all the same."""

from __future__ import annotations

import asyncio

from phalanx.model.kept import Counter
from phalanx.store.database import StoreError
from tests.harness.control_plane import ControlPlane


def test_a_unit_is_acted_on_though_its_waiter_went_away(control_plane: ControlPlane) -> None:
    acted: list[str] = []

    async def story() -> None:
        await _give_up_waiting(control_plane, acted)
        await control_plane.server.settled()

    control_plane.call(story)
    assert acted == ["acted"]


def test_a_commit_that_fails_ends_the_process_though_its_waiter_went_away(control_plane: ControlPlane) -> None:
    server, ended, acted = control_plane.server, asyncio.Event(), []    # type: ignore[var-annotated]

    async def story() -> None:
        written = asyncio.get_running_loop().create_future()
        kept_commit, kept_end = server.database.commit, server.end_process
        server.database.commit, server.end_process = lambda writes: written, ended.set  # type: ignore[method-assign]
        await _give_up_waiting(control_plane, acted)
        written.set_exception(StoreError("no space left on device"))
        await ended.wait()
        server.database.commit, server.end_process = kept_commit, kept_end  # type: ignore[method-assign]

    control_plane.call(story)
    assert acted == []
    control_plane.bugs.clear()


async def _give_up_waiting(plane: ControlPlane, acted: list[str]) -> None:
    unit = plane.server.unit()
    unit.put(Counter("a-story", 1))
    unit.after(lambda: acted.append("acted"))
    waiting = asyncio.ensure_future(_wait(plane.server.commit_soon(unit)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})


async def _wait(acted: asyncio.Future[None]) -> None:
    await acted
