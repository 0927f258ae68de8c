"""Every example is a program that the stock client deploys as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.model.work import Function
from tests.harness.control_plane import ControlPlane

EXAMPLES = Path(__file__).parents[2] / "examples"
FOR_OLDER_CLIENTS = {"beta_train_model.py"}     # modal.gpu went with 1.4; tests of older clients run it
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in FOR_OLDER_CLIENTS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_deploys(control_plane: ControlPlane, name: str) -> None:
    deployed = control_plane.modal("deploy", str(EXAMPLES / name))
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    functions = list(control_plane.server.world[Function].values())
    assert all(function.published for function in functions) and any(function.clustered for function in functions)
