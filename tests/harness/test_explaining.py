"""Why something waits, for people: the same numbers in status, in explain and in a recording that is replayed (design rule 8)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx.cli.admin import AdminError, call
from phalanx.cli.plan import plan_command
from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet, FakeRank
from tests.harness.waiting import until


def ask(plane: ControlPlane, method: str, **request: object) -> dict[str, object]:
    return call(f"127.0.0.1:{plane.port}", plane.config, method, dict(request))


def test_a_waiting_call_is_explained_and_its_decision_can_be_replayed(control_plane: ControlPlane, tmp_path: Path) -> None:
    fleet = FakeFleet(control_plane, 2)
    may_end = asyncio.Event()

    async def wait(rank: FakeRank, item: object) -> int:
        await may_end.wait()
        return rank.prepare.rank

    fleet.program = wait
    fleet.start()
    caller = Caller(control_plane)
    first = caller.call(caller.function("first", size=2, gpu="H100:8"))
    until(lambda: len(fleet.ran) == 2)
    second = caller.call(caller.function("second", size=2, gpu="H100:8"))
    status = until(lambda: (s := ask(control_plane, "Status"))["waiting"] and s)
    cluster_id = status["clusters"][0]["cluster_id"]
    waiting = status["waiting"][0]
    assert waiting["call"] == second and waiting["function"] == "second"
    assert waiting["reason"]["code"] == "no_capacity" and waiting["reason"]["numbers"]["free"] == 0
    assert waiting["reason"]["sentence"].startswith(f"waiting for 2 nodes with 8 H100: 0 free, 2 held by {cluster_id}")
    lines = ask(control_plane, "Explain", of=second)["lines"]
    assert lines[0].startswith("waiting for 2 nodes with 8 H100") and "position 1" in lines

    third = caller.call(control_plane.server.calls.get(second).function_id)
    behind = until(lambda: (w := ask(control_plane, "Status")["waiting"]) and len(w) == 2 and w)
    assert [row["call"] for row in behind] == [second, third]
    assert "position 2" in ask(control_plane, "Explain", of=third)["lines"]
    assert ask(control_plane, "Explain", of=first)["lines"] == [f"{first} runs on {cluster_id}"]

    recordings = tmp_path / "plans"
    recordings.write_text(str(ask(control_plane, "Plans")["recordings"]))
    replayed = CliRunner().invoke(plan_command, ["--replay", str(recordings)])
    assert replayed.exit_code == 0 and ", 0 differ" in replayed.output
    assert json.loads(recordings.read_text().splitlines()[-1])["snapshot"]["pending"][0]["size"] == 2

    control_plane.call(may_end.set)
    assert caller.result(first) == 0
    assert caller.result(second) == 0, "the idle cluster of the first is given up to it"
    assert "decided" in ask(control_plane, "Explain", of=second)["lines"][0]
    ended = until(lambda: [line for line in ask(control_plane, "Explain", of=cluster_id)["lines"] if "ended by" in line])
    assert "ended by idle" in ended[0]
    with pytest.raises(AdminError, match="not found"):
        ask(control_plane, "Explain", of="fc-nothing")
    fleet.stop()
