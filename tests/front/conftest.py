"""A real front on a free port, in a state folder of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from front_process import RunningFront, front_command

from phalanx.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    paths = Paths(tmp_path / "state")
    paths.state.mkdir()
    yield paths
    if paths.run.exists():
        (paths.run / "front.lock").unlink()
        paths.run.rmdir()       # fails if the front left anything else


@pytest.fixture
def front(paths: Paths) -> Iterator[RunningFront]:
    process = subprocess.Popen(front_command(paths), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    listen = json.loads(process.stdout.readline())["listen"]
    yield RunningFront(paths, listen, process)
    process.terminate()
    assert process.wait(10) == 0
    process.stdout.close()
