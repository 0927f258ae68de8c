"""What every request meets before its own noun: tokens, features that are not there."""

from __future__ import annotations

from tests.harness.control_plane import ControlPlane


def test_a_feature_that_is_not_there_is_refused_with_a_sentence(control_plane: ControlPlane) -> None:
    listed = control_plane.modal("volume", "list")
    assert listed.returncode == 1
    assert "Volumes are not supported by this Phalanx server (VolumeList)" in listed.stdout + listed.stderr


def test_the_server_starts_again_on_the_same_address(control_plane: ControlPlane) -> None:
    url = control_plane.url
    control_plane.restart()
    assert control_plane.url == url
    assert "not supported" in control_plane.modal("volume", "list").stderr
