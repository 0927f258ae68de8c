from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from modal.client import _Client

from tests.harness.control_plane import ControlPlane


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
