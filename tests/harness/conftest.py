from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from modal.client import _Client

from phalanx.config import Config
from tests.databases import fresh_database
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet

OVER_BOTH_DATABASES = pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.full)], indirect=True)
"""For a module whose stories are about what is kept: `pytestmark = OVER_BOTH_DATABASES`."""


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The control plane's database as the configuration names it: SQLite in the state folder, unless a test, or who runs them
    (PHALANX_TEST_DATABASE=postgresql), asks for another."""
    kind = getattr(request, "param", os.environ.get("PHALANX_TEST_DATABASE", "sqlite"))
    if kind == "sqlite":
        yield ""
        return
    with fresh_database(kind, tmp_path) as url:
        yield url


@pytest.fixture
def elsewhere(tmp_path: Path, database: str) -> Iterator[list[str]]:
    """What `phalanx restore` is told of the database that it fills: an empty one, where it is not part of the state folder."""
    if not database:
        yield []
        return
    with fresh_database("postgresql", tmp_path / "none") as url:
        yield ["--database", url]


@pytest.fixture
def control_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str) -> Iterator[ControlPlane]:
    """A running control plane, and this process's own modal package pointed at it."""
    plane = ControlPlane(tmp_path, Config(durability="process", database=database))
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
