"""At a terminal, what ranks printed before they returned comes before what their call returned."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from phalanx.protocol import agent_pb2 as pb
from tests.harness.clients import share_client_packages
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_agents import FakeFleet
from tests.harness.fake_logs import HEADER

PROGRAM = """
import modal
app = modal.App("printing")

@app.function(gpu="H100:8")
@modal.clustered(size=2)
def train(): ...

@app.local_entrypoint()
def main():
    for n in range(5):
        train.remote()
        print("returned", n, flush=True)
"""


@pytest.fixture
def program(control_plane: ControlPlane) -> str:
    share_client_packages(control_plane.paths.state)
    source = control_plane.folder / "printing.py"
    source.write_text(PROGRAM)
    return str(source)


def test_lines_that_an_agent_still_had_when_the_result_was_put_come_first(
    control_plane: ControlPlane, fleet: Callable[[int], FakeFleet], program: str
) -> None:
    made = fleet(2)
    ends: Counter[tuple[int, int]] = Counter()
    lines: Counter[tuple[int, int]] = Counter()

    def bring_the_rest(mark: pb.MarkLogs) -> None:
        key = mark.assignment, mark.rank
        data = f"rank {mark.rank} ends {lines[key]}\n".encode()
        begin, ends[key] = ends[key], ends[key] + HEADER + len(data)
        lines[key] += 1
        record = pb.LogRecord(stream=1, time_ns=time.time_ns(), data=data)
        made.say(logs=pb.Logs(assignment=key[0], rank=key[1], offset=begin, records=[record], end_offset=ends[key]))
        made.answer_mark(mark)

    made.on_mark = bring_the_rest
    done = control_plane.modal("run", program)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("rank", "returned"))]
    assert len(said) == 15
    for n in range(5):
        assert sorted(said[3 * n : 3 * n + 2]) == [f"rank 0 ends {n}", f"rank 1 ends {n}"]
        assert said[3 * n + 2] == f"returned {n}"


def test_an_agent_that_does_not_answer_holds_no_result_up_for_long(
    control_plane: ControlPlane, fleet: Callable[[int], FakeFleet], program: str
) -> None:
    fleet(2).on_mark = lambda mark: None
    done = control_plane.modal("run", program)
    assert done.returncode == 0 and "returned 4" in done.stdout, done.stdout + done.stderr


def test_nothing_is_asked_where_nobody_watches(control_plane: ControlPlane, fleet: Callable[[int], FakeFleet], program: str) -> None:
    asked: list[pb.MarkLogs] = []
    fleet(2).on_mark = asked.append
    done = control_plane.modal("run", "-q", program)
    assert done.returncode == 0 and "returned 4" in done.stdout, done.stdout + done.stderr
    assert not asked
