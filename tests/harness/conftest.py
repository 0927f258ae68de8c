from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from modal.client import _Client

from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet


@pytest.fixture
def control_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlPlane]:
    """A running control plane, and this process's own modal package pointed at it."""
    plane = ControlPlane(tmp_path)
    for name, value in plane.env.items():
        monkeypatch.setenv(name, value)
    _Client._set_env_client(None)   # the package keeps one client for the process: not that of the test before
    plane.start()
    yield plane
    _Client._set_env_client(None)
    plane.stop()
    assert not plane.bugs, "the server reported failures of its own:\n" + "\n".join(plane.bugs)


@pytest.fixture
def fleet(control_plane: ControlPlane) -> Iterator[Callable[[int], FakeFleet]]:
    """Makes fleets of fake nodes that have joined; they leave with the test."""
    fleets = []

    def make(nodes: int, **facts: Any) -> FakeFleet:
        made = FakeFleet(control_plane, nodes, **facts)
        made.start()
        fleets.append(made)
        return made

    yield make
    for made in fleets:
        made.stop()
