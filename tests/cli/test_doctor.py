"""phalanx doctor on whatever machine the tests run on."""

from __future__ import annotations

import json

from click.testing import CliRunner

from phalanx.cli.main import main


def test_doctor_says_what_auto_takes_and_why() -> None:
    said = CliRunner().invoke(main, ["doctor"])
    assert said.exit_code == 0, said.output
    found = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)
    assert f"--runtime auto takes {found['runtime']}: {found['reason']}" in said.output
    assert f"{found['runtime']} (taken)" in said.output
    for thing in found["missing"]:
        assert thing["what"] in said.output and thing["command"] in said.output
