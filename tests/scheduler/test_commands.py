"""`phalanx simulate` and `phalanx plan --replay`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx.cli.plan import plan_command
from phalanx.cli.simulate import simulate_command
from phalanx.model.plan import Policy, Snapshot
from phalanx.scheduler.index import FleetIndex
from phalanx.scheduler.plan import plan
from phalanx.scheduler.record import Ring, dump, load
from tests.scheduler.builders import HOUR, gang, hold, nodes

ROWS = [f"{i * 60},{1 + i % 4},{600 + i},,u{i % 3},0,train" for i in range(50)]
TRACE = "\n".join(["submit_s,nodes,duration_s,walltime_s,user,prio,kind", *ROWS])


def test_simulate_prints_waits_for_each_policy(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    flags = ["--policy", "phalanx", "--policy", "easy", "--load", "0.9"]
    result = CliRunner().invoke(simulate_command, ["--trace", str(trace), "--fleet", "2x8", *flags])
    assert result.exit_code == 0, result.output
    assert "phalanx" in result.output and "easy" in result.output and "large p99" in result.output


def test_simulate_gives_json_with_faults_and_unknown_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)
    flags = ["--json", "--faults", "21", "--rack-failure", "--estimates", "none", "--seed", "3", "--what-if-more", "8"]
    result = CliRunner().invoke(simulate_command, ["--trace", str(trace), "--fleet", "2x8", *flags])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["gangs"] == 50 and figures["cross_fabric"] == 0 and figures["partial"] == 0


def test_simulate_says_what_is_wrong_with_a_fleet_or_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("a,b\n1,2\n")
    assert "column" in CliRunner().invoke(simulate_command, ["--trace", str(trace), "--fleet", "2x8"]).output
    trace.write_text(TRACE)
    assert "FABRICSxNODES" in CliRunner().invoke(simulate_command, ["--trace", str(trace), "--fleet", "big"]).output


@pytest.mark.parametrize(
    ("text", "fleet", "said"),
    [
        ("submit_s,nodes,duration_s\n", "2x8", "has no gangs"),
        ("submit_s,nodes,duration_s\n0,2,60\n1,two,60\n", "2x8", "row 2"),
        ("submit_s,nodes,duration_s\n0,0,60\n", "2x8", "nodes is 0, and at least 1 is wanted"),
        (TRACE, "0x8", "has no nodes"),
        (TRACE, "2x8/0", "has no nodes"),
    ],
)
def test_simulate_says_what_is_wrong_with_a_row_or_a_count(tmp_path: Path, text: str, fleet: str, said: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    result = CliRunner().invoke(simulate_command, ["--trace", str(trace), "--fleet", fleet])
    assert result.exit_code == 1 and result.output.startswith("Error: ") and said in result.output


def test_simulate_and_replay_say_when_a_file_can_not_be_read(tmp_path: Path) -> None:
    assert "Is a directory" in CliRunner().invoke(simulate_command, ["--trace", str(tmp_path), "--fleet", "2x8"]).output
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(128, 256)))
    assert "can't be read" in CliRunner().invoke(plan_command, ["--replay", str(noise)]).output


def _recorded(tmp_path: Path) -> Path:
    fleet = nodes(4)
    ring = Ring()
    for at in range(3):
        snapshot = Snapshot(at, fleet, (hold("cu-7", fleet[:2], HOUR),), (gang("cu-8", 4), gang("cu-9", 1, submitted_ms=1)))
        ring.add(snapshot, Policy(), plan(snapshot))
    path = tmp_path / "plans.jsonl"
    path.write_text(ring.dump())
    return path


def test_replay_decides_the_same_again(tmp_path: Path) -> None:
    result = CliRunner().invoke(plan_command, ["--replay", str(_recorded(tmp_path))])
    assert result.exit_code == 0, result.output
    assert "3 decisions replayed, 0 differ" in result.output
    assert "wait cu-8: waiting for 4 nodes with 8 H100: 1 free, 3 held by cu-7 and cu-9; expected in 60 min" in result.output


def test_replay_explains_and_answers_what_if(tmp_path: Path) -> None:
    arguments = ["--replay", str(_recorded(tmp_path)), "--at", "-1", "--explain", "cu-8", "--what-if-more", "2"]
    result = CliRunner().invoke(plan_command, arguments)
    assert result.exit_code == 0, result.output
    assert "cu-7 holds 2 nodes, ends in 60 min" in result.output
    assert "with 2 nodes more:\n  cu-8 starts now" in result.output


def test_replay_shows_a_decision_that_differs(tmp_path: Path) -> None:
    path = _recorded(tmp_path)
    changed = path.read_text().replace('"cu-9"', '"cu-0"', 1)
    path.write_text(changed)
    result = CliRunner().invoke(plan_command, ["--replay", str(path)])
    assert result.exit_code == 1
    assert "DIFFERS" in result.output


def test_a_plan_made_from_the_kept_index_is_recorded_with_its_fleet() -> None:
    fleet = nodes(4)
    index = FleetIndex.of(fleet, (hold("cu-7", fleet[:2], HOUR),))
    snapshot = Snapshot(0, pending=(gang("cu-8", 4),))
    ring = Ring()
    ring.add(snapshot, Policy(), plan(snapshot, index=index), index)
    found = load(ring.dump())
    assert found.snapshot.nodes == fleet
    assert plan(found.snapshot, found.policy) == found.plan


def test_a_recording_survives_the_way_to_text_and_back(tmp_path: Path) -> None:
    for line in _recorded(tmp_path).read_text().splitlines():
        assert dump(load(line)) == line
