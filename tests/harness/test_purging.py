"""Old things go, whole, and nothing of what is younger."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from modal_proto import api_pb2

from phalanx.cli import archive
from phalanx.config import Config
from phalanx.model.app import App, AppState
from phalanx.model.cluster import Assignment, Attempt, Member, Phase
from phalanx.model.kept import KeptAnswer
from phalanx.model.work import Call, Function, Input, Output
from phalanx.paths import Paths
from phalanx.server import purging
from phalanx.server.purging import KEEP_ANSWERS_MS
from phalanx.server.server import Server
from phalanx.store.blobs import PARTS_KEPT_S, Blobs
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.waiting import until

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
WEEK_MS = 3 * HOUR_MS       # of these stories: a real one has too many ticks of the clock


def test_it_is_a_week_unless_the_owner_says_otherwise(tmp_path: Path) -> None:
    for config, days in ((Config(), 7), (Config(result_retention_s=86_400), 1)):
        server = Server(config, Paths(tmp_path / "state"))
        assert server.purging.keep_ms == days * DAY_MS
        server.close()


def test_a_stopped_app_goes_after_a_week_with_its_calls_and_a_running_one_stays(control_plane: ControlPlane) -> None:
    fleet = FakeFleet(control_plane, 2, gpu_type="", gpu_count=0)
    fleet.start()
    world = control_plane.server.world
    control_plane.server.purging.keep_ms = WEEK_MS
    old, young = Caller(control_plane, "old"), Caller(control_plane, "young")
    for caller in (old, young):
        caller.result(caller.call(caller.function(), key=caller.app_id))
    old.stop()
    until(lambda: world[App][old.app_id].drained)
    assert world[KeptAnswer]

    control_plane.advance(KEEP_ANSWERS_MS + 11 * 60_000)
    assert not [kept for kept in world[KeptAnswer].values() if kept.rpc == "FunctionMap"]
    assert old.app_id in world[App]

    control_plane.advance(WEEK_MS - 15 * 60_000)        # the younger one has ended too by now, some minutes less than a week ago
    assert old.app_id not in world[App] and young.app_id in world[App]
    assert {function.app_id for function in world[Function].values()} == {young.app_id}
    fleet.stop()


def test_calls_and_clusters_of_an_app_that_lives_on_go_after_a_week_and_open_ones_stay(control_plane: ControlPlane) -> None:
    fleet = FakeFleet(control_plane, 2, gpu_type="", gpu_count=0)
    fleet.start()
    world = control_plane.server.world
    control_plane.server.purging.keep_ms = WEEK_MS
    caller = Caller(control_plane)
    control_plane.change(lambda unit: setattr(world[App][caller.app_id], "state", AppState.DEPLOYED))
    function_id = caller.function()
    caller.result(caller.call(function_id))
    control_plane.advance(120_000)      # over its window: the container leaves
    until(lambda: all(one.phase == Phase.ENDED for one in world[Assignment].values()))
    fleet.stop()
    request = api_pb2.FunctionMapRequest(function_id=function_id, function_call_type=api_pb2.FUNCTION_CALL_TYPE_MAP)
    abandoned = control_plane.rpc("FunctionMap", request).function_call_id      # its client died before it sent an input
    still_open = caller.call(function_id)
    assert set(world[Call]) > {abandoned, still_open} and len(world[Call]) == 3

    control_plane.advance(WEEK_MS + HOUR_MS)
    assert list(world[Call]) == [still_open]
    assert len(world[Input]) == 1 and not world[Output] and not world[Attempt]
    assert not [one for kind in (Assignment, Member) for one in world[kind].values()]
    assert caller.app_id in world[App] and not control_plane.server.gangs.by_task


def test_thousands_of_old_calls_go_in_small_units(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "MOST_CALLS", 3)
    fleet = FakeFleet(control_plane, 2, gpu_type="", gpu_count=0)
    fleet.start()
    caller = Caller(control_plane)
    function_id = caller.function()
    control_plane.change(lambda unit: setattr(control_plane.server.world[App][caller.app_id], "state", AppState.DEPLOYED))
    for _ in range(10):
        caller.result(caller.call(function_id))
    caller.results(caller.call(function_id, inputs=20), 20)
    fleet.stop()
    control_plane.server.purging.keep_ms = HOUR_MS
    units: list[int] = []
    calls = purging.Purging._calls
    monkeypatch.setattr(purging.Purging, "_calls", lambda self, unit: (calls(self, unit), units.append(len(unit._changed))))
    control_plane.advance(2 * HOUR_MS)
    assert not control_plane.server.world[Call] and len(units) == 4
    control_plane.restart()
    assert not control_plane.server.world[Call] and not control_plane.server.world[Input]


def test_nothing_goes_while_a_backup_is_made(control_plane: ControlPlane) -> None:
    caller = Caller(control_plane)
    control_plane.change(lambda unit: setattr(control_plane.server.world[App][caller.app_id], "state", AppState.DEPLOYED))
    request = api_pb2.FunctionMapRequest(function_id=caller.function(), function_call_type=api_pb2.FUNCTION_CALL_TYPE_MAP)
    control_plane.rpc("FunctionMap", request)
    control_plane.server.purging.keep_ms = HOUR_MS
    with archive._nothing_removed(control_plane.paths):
        control_plane.advance(2 * HOUR_MS)
        assert control_plane.server.world[Call]
    control_plane.advance(11 * 60_000)
    assert not control_plane.server.world[Call]


def test_blobs_that_nobody_names_go_and_those_of_results_mounts_and_clients_that_ask_stay(control_plane: ControlPlane) -> None:
    server, write = control_plane.server, lambda data: control_plane.call(control_plane.server.blobs.write, data)
    named, lost, asked, mounted = (write(data) for data in (b"a result", b"of a call that is gone", b"asked about", b"a file"))
    caller = Caller(control_plane)
    control_plane.change(lambda unit: setattr(server.world[App][caller.app_id], "state", AppState.DEPLOYED))
    item = api_pb2.FunctionPutInputsItem(input=api_pb2.FunctionInput(args_blob_id=named))
    function_id = caller.function()
    request = api_pb2.FunctionMapRequest(function_id=function_id, function_call_type=1, pipelined_inputs=[item])
    control_plane.rpc("FunctionMap", request)       # waits
    mount = control_plane.change(server.mounts.create, [("/root/a.py", mounted[3:], 0o644)])
    control_plane.change(lambda unit: server.world[Function][function_id].mount_ids.append(mount.mount_id))
    server.purging.keep_ms = HOUR_MS
    control_plane.advance(2 * HOUR_MS)
    assert not server.blobs.has(lost[3:]) and not server.blobs.has(asked[3:])
    assert server.blobs.has(named[3:]) and server.blobs.has(mounted[3:])


def test_a_blob_that_a_client_was_told_is_here_stays_for_it(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    sha256 = blobs.write(b"content")[3:]
    os.utime(tmp_path / "blobs" / sha256[:2] / sha256, (0, 0))
    assert blobs.older_than(1000) == {sha256}
    assert blobs.asked(sha256)
    assert not blobs.remove(sha256, 1000) and blobs.has(sha256)


def test_the_answers_to_a_runners_earlier_requests_for_inputs_are_not_kept(control_plane: ControlPlane) -> None:
    fleet = FakeFleet(control_plane, 1, gpu_type="", gpu_count=0)
    fleet.start()
    caller = Caller(control_plane)
    function_id = caller.function(max_concurrent_inputs=1)
    caller.results(caller.call(function_id, inputs=30), 30)
    kept = [one for one in control_plane.server.world[KeptAnswer].values() if one.rpc == "FunctionGetInputs"]
    assert len(kept) <= 2 * len(control_plane.server.gangs.running)
    fleet.stop()


def test_parts_of_an_upload_that_nobody_completes_go_after_a_day_without_a_restart(control_plane: ControlPlane) -> None:
    blobs = control_plane.server.blobs
    left, young = (blobs.part_path("bl-" + digit * 64, 1, "upload") for digit in "ab")
    for path in (left, young):
        path.write_bytes(b"half of a gigabyte")
    day_s = PARTS_KEPT_S
    now_s = control_plane.server.now_ms() / 1000
    os.utime(left, (now_s - day_s - 60,) * 2)
    os.utime(young, (now_s - 60,) * 2)
    control_plane.call(control_plane.server.purging.purge)
    assert (left.exists(), young.exists()) == (False, True)
