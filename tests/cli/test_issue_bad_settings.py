"""`phalanx up` with settings that can't work says so at once, in a sentence, and the next `up` starts as if it had not been."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phalanx.cli.main import main
from phalanx.config import Config
from phalanx.paths import Paths


def up(paths: Paths, config: Config, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["up", "-d", "--state", str(paths.state), "--listen", config.listen, *arguments])


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "an object with settings is wanted"),
        ('{"nodes": "x"}', "nodes is 'x', and a whole number is wanted"),
        ('{"allow_cpu_clusters": 1}', "allow_cpu_clusters is 1, and true or false is wanted"),
        ('{"outage_limit_ms": -1}', "outage_limit_ms is -1, and a number from 0 is wanted"),
        ('{"nodess": 3}', "unknown setting nodess"),
        ('{"quotas": {"main": 8}}', "quotas: 'main' is 8, and an object is wanted, such as {\"nodes\": 8"),
        ('{"quotas": {"main": {"node": 8}}}', "quotas: 'main' has node, and only nodes, gpus, cohort, borrow are known"),
        ('{"quotas": {"main": {"gpus": {"H100": "x"}}}}', "quotas: 'main' has H100 'x', and a whole number from 0 is wanted"),
        ('{"quotas": {"main": {"nodes": 8, "borrow": 2}}}', "quotas: 'main' borrows, and names no cohort to borrow from"),
    ],
)
def test_a_mistake_in_the_configuration_names_the_file_and_the_setting(paths: Paths, config: Config, written: str, said: str) -> None:
    paths.state.mkdir()
    paths.config.write_text(written)
    answer = up(paths, config)
    assert answer.exit_code == 1
    assert str(paths.config) in answer.output and said in answer.output


def test_a_state_folder_that_can_not_be_made(config: Config) -> None:
    answer = up(Paths(Path("/proc/phalanx")), config)
    assert answer.exit_code == 1
    assert "can't write to the state folder /proc/phalanx" in answer.output and "--state" in answer.output


def test_an_agent_that_will_never_work_is_not_waited_for(paths: Paths, config: Config, stand_ins: Any) -> None:
    working = list(stand_ins["agent"])
    assert up(paths, config, "--runtime", "process").exit_code == 0
    CliRunner().invoke(main, ["down", "--state", str(paths.state)])
    (paths.state / "story").unlink()
    stand_ins["agent"][:] = [sys.executable, "-c", "import sys; print('agent: the runtime runsc does not work here'); sys.exit(78)"]
    answer = up(paths, config, "--runtime", "runsc", "--nodes", "9")
    assert answer.exit_code == 1
    assert answer.output.count("agent: the runtime runsc does not work here") == 1
    stand_ins["agent"][:] = working
    assert up(paths, config).exit_code == 0
    assert (Config.load(paths.config).runtime, Config.load(paths.config).nodes) == ("process", 2)
    CliRunner().invoke(main, ["down", "--state", str(paths.state)])


def test_a_mistake_made_meanwhile_keeps_nobody_from_stopping(paths: Paths, config: Config, stand_ins: Any) -> None:
    assert up(paths, config).exit_code == 0
    paths.config.write_text("{")
    assert "stopped supervisor, front, server, agent" in CliRunner().invoke(main, ["down", "--state", str(paths.state)]).output
