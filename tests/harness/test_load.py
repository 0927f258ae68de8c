"""Many at once: nothing fails, nothing is lost, nothing blocks. How fast it is, benchmarks/load.py tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.config import Config
from tests.harness import loads
from tests.harness.apart import PlaneApart
from tests.harness.callers import Caller
from tests.harness.waiting import until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[PlaneApart]:
    plane = PlaneApart(tmp_path, Config(durability="full"))
    plane.start()
    yield plane
    plane.stop()
    assert "Traceback" not in plane.log() and "database is locked" not in plane.log(), plane.log()


@pytest.mark.parametrize("agents, clients, seconds", [(5, 4, 3), pytest.param(50, 20, 60, marks=pytest.mark.full)])
def test_case_85_agents_and_clients_write_while_backups_are_made(
    apart: PlaneApart, tmp_path: Path, agents: int, clients: int, seconds: int
) -> None:
    with loads.fleets(apart, agents):
        function_id = Caller(apart).function()
        with loads.backups(apart, tmp_path) as sizes:
            waits = loads.write_for(apart, function_id, clients, seconds)
    assert not waits.errors and len(waits.ms) > clients and sizes


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.full)])
def test_calls_that_wait_are_all_done_once_there_is_a_node(apart: PlaneApart, count: int) -> None:
    caller = Caller(apart)
    function_id = caller.function()
    loads.spawn(apart, function_id, count)
    apart.kill()
    apart.start()
    with loads.fleets(apart, 4):
        until(lambda: loads.stats(apart, function_id).backlog == 0, 300)


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.full)])
def test_an_app_with_many_spawned_inputs_answers_others(apart: PlaneApart, count: int) -> None:
    function_id, other = loads.many_functions(apart, 2)
    waits = loads.spawn(apart, function_id, count)
    assert len(waits.ms) == count and loads.stats(apart, function_id).backlog == count
    assert loads.ask_status(apart, other).ms
    apart.kill()
    apart.start()
    assert loads.stats(apart, function_id).backlog == count
