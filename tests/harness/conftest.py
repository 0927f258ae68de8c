from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.control_plane import ControlPlane


@pytest.fixture
def control_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlPlane]:
    """A running control plane, and this process's own modal package pointed at it."""
    plane = ControlPlane(tmp_path)
    for name, value in plane.env.items():
        monkeypatch.setenv(name, value)
    plane.start()
    yield plane
    plane.stop()
    assert not plane.bugs, "the server reported failures of its own:\n" + "\n".join(plane.bugs)
