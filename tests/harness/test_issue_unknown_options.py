"""A typo in `experimental_options` was ignored without a word, and cost its author hours."""

from __future__ import annotations

import modal
import pytest

from tests.harness.clients import client_python
from tests.harness.control_plane import ControlPlane
from tests.harness.test_functions import client_packages, deploy, functions  # noqa: F401 - a fixture

PROGRAM = """
    import modal
    app = modal.App("typo")
    @app.function(experimental_options={options})
    def train(): ...
"""


@pytest.mark.parametrize("version", ["1.6.4", *(pytest.param(version, marks=pytest.mark.full) for version in ("1.3.5", "1.0.5"))])
def test_the_client_shows_what_a_misspelt_key_may_have_meant(control_plane: ControlPlane, version: str) -> None:
    """0.73 has no such parameter."""
    python = "" if version == modal.__version__ else client_python(version)
    program = PROGRAM.replace("{options}", '{"priorty": 10, "grace_period": 5, "efa_enabled": True}')
    done = deploy(control_plane, program, python, COLUMNS="80")
    shown = " ".join("".join(c for c in done.stdout + done.stderr if c not in "│├└─").split())
    assert done.returncode == 0, shown
    assert "experimental_options on 'train': there is no 'priorty', did you mean 'priority'? It changes nothing." in shown
    assert "There is finish_window, grace_period, inputs_in_step, priority, queue, queue_deadline;" in shown
    assert functions(control_plane)["train"].options["priorty"] == "10"
    assert shown.count("there is no") == 1


def test_known_keys_pass_without_a_word_and_a_value_out_of_range_is_refused(control_plane: ControlPlane) -> None:
    done = deploy(control_plane, PROGRAM.replace("{options}", '{"priority": 1, "efa_enabled": True, "enable_gpu_snapshot": True}'))
    assert done.returncode == 0 and "experimental_options" not in done.stdout + done.stderr
    done = deploy(control_plane, PROGRAM.replace("{options}", '{"grace_period": 7200}'))
    assert done.returncode == 1 and "a number of seconds from 0 to 3600 is wanted" in done.stdout + done.stderr
