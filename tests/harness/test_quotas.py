"""Quotas of the configuration: what a queue may hold at once, and what its calls are told beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpclib.exceptions import GRPCError

from phalanx.config import Config
from phalanx.model.cluster import Cause
from phalanx.model.reasons import sentence
from phalanx.model.work import Function
from phalanx.scheduler.index import FleetIndex
from phalanx.server.snapshot import hold_of
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.waiting import until
from tests.harness.working import Work, ended, function, item_of, name_of, waiting

QUOTAS: dict[str, dict[str, object]] = {"research": {"nodes": 4, "gpus": {"H100": 16}}, "serving": {"nodes": 8}}


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    plane = ControlPlane(tmp_path, Config(durability="process", quotas=QUOTAS))
    plane.start()
    yield plane
    plane.stop()
    assert not plane.bugs


def used(plane: ControlPlane) -> dict[str, int]:
    """Nodes held now, by queue, counted anew from the clusters."""
    gangs = plane.server.gangs.running.values()
    world = plane.server.world
    return FleetIndex.of((), [hold_of(g, world[Function][g.assignment.function_id], g.members) for g in gangs]).used


def test_case_9_a_call_beyond_its_queues_quota_waits_with_the_numbers_and_starts_nothing(plane: ControlPlane) -> None:
    nodes = FakeFleet(plane, 8, gpu_type="H100")
    nodes.start()
    work = Work(nodes)
    caller = Caller(plane)
    large = caller.call(function(caller, "large", 6, options={"queue": "research"}))
    until(lambda: waiting(plane) == [("large", "quota")])
    (_, reason), = plane.call(lambda: plane.server.planning.waiting())
    assert sentence(reason) == "quota of research: 0 of 4 nodes in use, this asks 6"
    assert nodes.starts("prepare") == []
    other = caller.call(function(caller, "other", 6, options={"queue": "serving"}))
    until(lambda: work.begun("other") == 6)
    gpus = caller.call(function(caller, "gpus", 3, options={"queue": "research"}))
    until(lambda: len(waiting(plane)) == 2)
    said = {sentence(reason) for _, reason in plane.call(lambda: plane.server.planning.waiting())}
    assert "quota of research: 0 of 16 H100 in use, this asks 24" in said
    caller.cancel(large)
    caller.cancel(gpus)
    work.finish("other")
    assert caller.result(other) == "other"
    nodes.stop()


def test_a_queue_without_a_quota_is_refused_when_the_function_is_made(plane: ControlPlane) -> None:
    with pytest.raises(GRPCError, match="queue 'reserach' has no quota; the configuration's `quotas` has research, serving"):
        function(Caller(plane), "typo", 2, options={"queue": "reserach"})


def test_case_31_an_evicted_gangs_quota_is_free_again_and_its_call_waits_in_its_place(plane: ControlPlane) -> None:
    nodes = FakeFleet(plane, 2)
    nodes.start()
    work = Work(nodes)
    caller = Caller(plane)
    low = caller.call(function(caller, "low", 2, options={"queue": "research"}))
    until(lambda: work.begun("low") == 2)
    assert used(plane) == {"research": 2}
    urgent = caller.call(function(caller, "urgent", 2, priority=10, options={"queue": "serving"}))
    until(lambda: work.begun("urgent") == 2)
    assert plane.call(used, plane) == {"serving": 2}
    assert item_of(plane, low).state == "pending" and waiting(plane) == [("low", "no_capacity")]
    work.finish("urgent", "low")
    assert caller.result(urgent) == "urgent" and caller.result(low) == "low"
    nodes.stop()


def test_an_idle_cluster_of_ones_own_queue_makes_way_where_the_quota_is_used_up(plane: ControlPlane) -> None:
    nodes = FakeFleet(plane, 8, gpu_type="H100")
    nodes.start()
    work = Work(nodes)
    work.done.update(("first", "second"))
    caller = Caller(plane)
    fields: dict[str, Any] = {"options": {"queue": "research"}}
    assert caller.result(caller.call(function(caller, "first", 2, **fields))) == "first"
    assert caller.result(caller.call(function(caller, "second", 2, **fields))) == "second", "16 of 16 H100 are the idle cluster's"
    nodes.stop()


def test_a_plain_functions_gpus_count_and_its_idle_container_makes_way_for_a_cluster_of_the_queue(plane: ControlPlane) -> None:
    nodes = FakeFleet(plane, 4, gpu_type="H100")
    nodes.start()
    work = Work(nodes)
    caller = Caller(plane)
    fields: dict[str, Any] = {"options": {"queue": "research"}}
    notebook = caller.call(caller.function("notebook", gpu="H100:1", experimental_options={"queue": "research"}))
    until(lambda: work.begun("notebook") == 1)
    gang = caller.call(function(caller, "gang", 2, **fields))
    until(lambda: waiting(plane) == [("gang", "quota")])
    (_, reason), = plane.call(lambda: plane.server.planning.waiting())
    assert sentence(reason) == "quota of research: 1 of 16 H100 in use, this asks 16"
    work.finish("notebook", "gang")
    assert caller.result(notebook) == "notebook"
    assert caller.result(gang) == "gang", "the container is idle for a minute, and does not keep the cluster for so long"
    nodes.stop()


def test_a_call_of_higher_priority_stops_work_of_its_own_queue_where_the_quota_is_used_up(plane: ControlPlane) -> None:
    nodes = FakeFleet(plane, 8)
    nodes.start()
    work = Work(nodes)
    caller = Caller(plane)
    fields: dict[str, Any] = {"options": {"queue": "research"}}
    older = caller.call(function(caller, "older", 2, **fields))
    until(lambda: work.begun("older") == 2)
    plane.advance(60_000)
    younger = caller.call(function(caller, "younger", 2, **fields))
    until(lambda: work.begun("younger") == 2)
    plane.advance(30_000)
    urgent = caller.call(function(caller, "urgent", 2, priority=1, **fields))
    until(lambda: work.begun("urgent") == 2)
    assert [name_of(plane, a.assignment) for a in ended(plane, Cause.PREEMPTED)] == ["younger"], "whole, the one with the least to lose"
    until(lambda: waiting(plane) == [("younger", "quota")])
    work.finish("urgent", "older", "younger")
    assert [caller.result(call) for call in (older, younger, urgent)] == ["older", "younger", "urgent"]
    assert item_of(plane, younger).user_failures == 0 and item_of(plane, urgent).evictions == 1
    nodes.stop()
