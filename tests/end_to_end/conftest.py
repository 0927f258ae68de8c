"""One control plane with real containers for all stories, and a look at the machine after its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.live import Live
from tests.harness.clients import share_client_packages

NODES = 16      # virtual: they cost nothing until a container runs on them


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """16 nodes of 8 simulated GPUs under crun. After `phalanx down` nothing of it may be left on the machine."""
    with fleet(tmp_path_factory.mktemp("live") / "state", NODES) as plane:
        yield plane


@pytest.fixture
def another(tmp_path: Path) -> Callable[..., Any]:
    """A control plane of the test's own, where the shared one must not be disturbed."""
    return lambda nodes, **settings: fleet(tmp_path / "state", nodes, **settings)


@contextmanager
def fleet(state: Path, nodes: int, **settings: Any) -> Iterator[Live]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    share_client_packages(state)
    plane = Live(state, nodes, "crun", **settings)
    try:
        plane.up()
        yield plane
    finally:
        plane.down()
    left = plane.traces()
    assert not (left.processes | left.links | left.mounts | left.cgroups | left.folders), left
    assert not plane.paths.run.exists()
