"""`phalanx backup` while calls come and go, `phalanx restore` elsewhere: what was done is there, what was not is done there."""

from __future__ import annotations

import asyncio
import io
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from modal_proto import api_pb2

from phalanx.cli.main import main
from phalanx.config import Config
from phalanx.model.work import Call, CallState, Input
from phalanx.paths import Paths
from tests.harness.callers import Caller
from tests.harness.conftest import OVER_BOTH_DATABASES
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet, FakeRank
from tests.harness.waiting import until

BIG = b"x" * 3_000_000


def phalanx(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


async def answer(rank: FakeRank, item: Any) -> str:
    return f"answer {item.input_id}"


async def answer_unless_it_holds(rank: FakeRank, item: Any) -> str:
    if rank.prepare.function_name == "hold":
        await asyncio.sleep(3600)
    return await answer(rank, item)


@OVER_BOTH_DATABASES
def test_a_backup_under_load_is_of_one_moment_and_goes_on_elsewhere(
    control_plane: ControlPlane, tmp_path: Path, elsewhere: list[str]
) -> None:
    control_plane.config.save(control_plane.paths.config)
    fleet = FakeFleet(control_plane, 4)
    fleet.program = answer_unless_it_holds
    fleet.start()
    caller = Caller(control_plane)
    function_id = caller.function()
    first = [caller.call(function_id) for _ in range(5)]
    results = {call_id: caller.result(call_id) for call_id in first}
    blob_id = control_plane.call(control_plane.server.blobs.write, BIG)
    running = caller.call(caller.function("hold", gpu="H100:8", size=2))
    waiting = caller.call(caller.function("after it", gpu="H100:8", size=4))
    until(lambda: sum(key[0] == fleet.ran[-1][0][0] for key, _, _ in fleet.ran) == 2)
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            caller.result(caller.call(function_id))

    loads = [threading.Thread(target=load, daemon=True) for _ in range(3)]
    for thread in loads:
        thread.start()
    file = tmp_path / "backup.tar"
    said = phalanx("backup", file, "--state", control_plane.paths.state)
    stop.set()
    for thread in loads:
        thread.join()
    assert said.exit_code == 0, said.output
    assert file.stat().st_mode & 0o077 == 0
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("backup.tar.")]
    fleet.stop()
    control_plane.stop()

    there = tmp_path / "elsewhere" / "state"
    said = phalanx("restore", file, "--state", there, *elsewhere)
    assert said.exit_code == 0, said.output
    restored = ControlPlane(tmp_path / "elsewhere", Config.load(Paths(there).config))
    restored.start()
    caller.plane = restored
    world = restored.server.world
    assert {call_id: caller.result(call_id) for call_id in first} == results
    assert restored.call(restored.server.blobs.read, blob_id) == BIG
    nodes = FakeFleet(restored, 8)      # of the same names, and without the containers that ran
    nodes.program = answer
    nodes.start()
    assert caller.result(running).startswith("answer") and caller.result(waiting).startswith("answer")
    until(lambda: all(call.state == CallState.DONE for call in world[Call].values()))
    assert all(call.num_inputs == call.num_outputs == 1 for call in world[Call].values()) and len(world[Input]) == len(world[Call])
    nodes.stop()
    restored.stop()
    assert not restored.bugs


def test_log_lines_are_in_the_backup(control_plane: ControlPlane, tmp_path: Path, elsewhere: list[str]) -> None:
    control_plane.config.save(control_plane.paths.config)
    caller = Caller(control_plane)
    function_id = caller.function(size=2, gpu="H100:8")
    caller.call(function_id)        # waits, and its app's log says why
    until(lambda: control_plane.server.logs.index.sources(caller.app_id))
    control_plane.call(asyncio.sleep, 0.3)
    assert phalanx("backup", tmp_path / "b.tar", "--state", control_plane.paths.state).exit_code == 0
    assert phalanx("restore", tmp_path / "b.tar", "--state", tmp_path / "new", *elsewhere).exit_code == 0
    here, there = (segments(state) for state in (control_plane.paths.state, tmp_path / "new"))
    assert there and all(here[name].startswith(data) for name, data in there.items())


def segments(state: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (state / "logs").glob("*/*")}


def test_a_folder_that_is_in_use_or_not_empty_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    control_plane.config.save(control_plane.paths.config)
    assert phalanx("backup", tmp_path / "b.tar", "--state", control_plane.paths.state).exit_code == 0
    said = phalanx("restore", tmp_path / "b.tar", "--state", control_plane.paths.state)
    assert said.exit_code == 1 and "is not empty: restore into a new folder" in said.output
    assert control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(description="undisturbed"))


@pytest.mark.parametrize("damage, sentence", [("none", "is no backup of phalanx"), ("cut", "cut off|damaged|holds no rows")])
def test_what_is_no_backup_leaves_nothing(control_plane: ControlPlane, tmp_path: Path, damage: str, sentence: str) -> None:
    control_plane.config.save(control_plane.paths.config)
    file = tmp_path / "b.tar"
    if damage == "none":
        with tarfile.open(file, "w") as tar:
            tar.addfile(tarfile.TarInfo("../../etc/passwd"), io.BytesIO())
    else:
        assert phalanx("backup", file, "--state", control_plane.paths.state).exit_code == 0
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    said = phalanx("restore", file, "--state", tmp_path / "new")
    assert said.exit_code == 1
    assert any(part in said.output for part in sentence.split("|")), said.output
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.restoring").exists()


def test_a_state_that_is_none_is_said(tmp_path: Path) -> None:
    said = phalanx("backup", tmp_path / "b.tar", "--state", tmp_path / "nowhere")
    assert said.exit_code == 1 and "is no state of phalanx" in said.output and not (tmp_path / "b.tar").exists()
