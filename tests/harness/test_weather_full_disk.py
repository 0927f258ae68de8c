"""The store's disk is full: nothing that is not on it is ever acknowledged, and the process starts again from what is."""

from __future__ import annotations

import pytest
from grpclib.exceptions import GRPCError
from modal_proto import api_pb2

from phalanx.model.app import App
from tests.harness.control_plane import ControlPlane


def test_a_request_that_can_not_be_committed_ends_the_process(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its retry would be given the answer that only memory has, and the app would be gone with the next start."""
    ended: list[bool] = []
    control_plane.server.end_process = lambda: ended.append(True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(control_plane.server.database, "_apply", full)
    with pytest.raises(GRPCError):
        control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(description="unlucky"))
    assert ended[:1] == [True]
    control_plane.stop()            # the next start is from what is on disk; what the log says of all this is the test's own doing
    control_plane.bugs.clear()
    monkeypatch.undo()
    control_plane.start()
    assert control_plane.call(lambda: list(control_plane.server.world[App].values())) == []
