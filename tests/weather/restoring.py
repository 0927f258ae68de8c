"""`phalanx backup` while everything goes on, and later, on other machines, `phalanx restore`: a fault of one kind of world.

What was acknowledged after the backup is lost with it, and so are its clients. All that the backup has comes to its end.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from modal_proto import api_pb2

from phalanx.model.cluster import Phase
from phalanx.model.work import CallState
from tests.weather.faults import between, put_back
from tests.weather.lives import begin
from tests.weather.people import Person
from tests.weather.truth import CallTruth


async def restore_backup(world: Any) -> None:
    if world.is_evening or world.restores:      # once in a world
        return
    world.restores += 1
    rows = {name: dict(table) for name, table in world.plane.rows.tables.items()}
    folder = world.plane.paths.state.with_name("backup")
    shutil.copytree(world.plane.paths.state, folder)
    await asyncio.sleep(between(world, 10, 3600))
    while not world.plane.is_up:        # noqa: ASYNC110 - as whoever looks at it
        await asyncio.sleep(1)
    _put_in_place(world, rows, folder)
    for host in world.hosts:
        begin(put_back(world, host))    # as the backup has it, but nobody remembers why
    await _see_to_the_end(world)


def _put_in_place(world: Any, rows: dict[str, Any], folder: Path) -> None:
    plane = world.plane
    for task in world.tasks_of_people:
        task.cancel()
    plane.kill(1e9)
    were_on = [host for host in world.hosts if not host.is_off]
    for host in world.hosts:
        host.power_off()
        host.renew()
    plane.rows.tables = rows
    shutil.rmtree(plane.paths.state)
    folder.rename(plane.paths.state)
    plane.paths.restored.touch()
    _rewind(world)
    plane.start()
    for host in were_on:
        host.power_on()
    world.begin_people(len(world.people))


def _rewind(world: Any) -> None:
    """The truth of that moment. What programs did since may be remembered: it only forgives."""
    truth, tables = world.truth, world.plane.rows.tables
    truth.calls.clear()
    truth.running.clear()
    truth.alive.clear()
    truth.holders.clear()
    for number, row in tables.get("assignment", {}).items():
        if row["phase"] != Phase.ENDED:
            for member in truth._members(number[0]):
                truth.holders[member["node_id"]][number[0]] = bool(row["clustered"])
    truth.counts["calls made"] = truth.counts["calls acknowledged"] = len(tables.get("call", {}))


async def _see_to_the_end(world: Any) -> None:
    """Somebody reads the results of every call that was not decided, and stops the apps of those who are gone."""
    tables, heir, waits = world.plane.rows.tables, Person(world, 1000), []
    named = [app_id for (app_id,), row in tables.get("app", {}).items() if row["name"] and not row["drained"]]
    indexes: dict[str, list[int]] = defaultdict(list)
    for row in tables.get("input", {}).values():
        indexes[row["call_id"]].append(row["idx"])
    for (call_id,), row in list(tables.get("call", {}).items()):
        known = world.truth.ever.get(call_id)
        if row["state"] == CallState.DONE or known is None:
            continue
        arguments = [known.arguments[idx] for idx in sorted(indexes[call_id])]
        call = world.truth.calls[call_id] = CallTruth(call_id, known.function, arguments, may_be_terminated=True)
        waits.append(begin(heir._wait(call)))
    if waits:
        await asyncio.wait(waits)
        for wait in waits:
            if wait.exception() is not None:
                world.truth.say_wrong(f"a call of the backup does not end: {wait.exception()!r}")
    for app_id in named:
        await heir.ask("AppStop", api_pb2.AppStopRequest(app_id=app_id, source=api_pb2.APP_STOP_SOURCE_CLI))
