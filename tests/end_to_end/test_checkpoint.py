"""The training example goes through two preemptions, a lost node and a dead control plane, and its loss curve shows nothing of it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.inside import processes_of
from tests.end_to_end.live import Client, Live
from tests.harness.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpoint_resume.py"
STEPS = 120
pytestmark = pytest.mark.root


def undisturbed() -> list[float]:
    """The loss curve, computed here without a cluster."""
    spec = importlib.util.spec_from_file_location("checkpoint_resume", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    state = example.first_state()
    while state["step"] < STEPS:
        parts = [example.gradient_and_loss(state["weights"], rank) for rank in range(example.WORLD)]
        state = example.next_state(state, [sum(part) for part in zip(*parts, strict=True)])
    losses: list[float] = state["losses"]
    return losses


def begins(client: Client) -> list[tuple[int, int]]:
    """(attempt, step) as rank 0 said it, for each attempt."""
    found = [re.search(r"rank 0: attempt (\d+) begins at step (\d+)", line) for line in client.lines]
    return [(int(one[1]), int(one[2])) for one in found if one]


def steps(client: Client) -> list[int]:
    return [int(one[1]) for line in client.lines if (one := re.search(r"step (\d+) loss ", line))]


def goes_on(client: Client, more: int = 5) -> None:
    """Some more steps are done."""
    before = len(steps(client))
    until(lambda: len(steps(client)) >= before + more or client.process.poll() is not None, 100)
    assert client.process.poll() is None, client.lines


def node_of_rank(plane: Live, rank: int) -> str:
    (cluster,) = [one for one in plane.status()["clusters"] if one["function"] == "train"]
    return str(cluster["nodes"][rank])


def attempt_begins(client: Client, number: int) -> None:
    until(lambda: len(begins(client)) >= number or client.process.poll() is not None, 100)
    assert client.process.poll() is None, client.lines
    goes_on(client)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_training_goes_on_where_it_was(another: Callable[..., Any]) -> None:
    with another(3) as plane, plane.running("run", str(EXAMPLE), "--steps", str(STEPS), "--pause", "0.2") as client:
        attempt_begins(client, 1)

        for attempt, rank in ((2, 1), (3, 0)):      # two preemptions
            node = node_of_rank(plane, rank)
            assert plane.phalanx("node", "drain", node, "--now").code == 0
            attempt_begins(client, attempt)
            assert begins(client)[-1][1] == saved(client)[-1], "it resumes at the step it was interrupted at"
            assert node not in {node_of_rank(plane, r) for r in (0, 1)}
            assert plane.phalanx("node", "uncordon", node).code == 0

        plane.kill("server")                        # one control-plane restart: nobody notices
        goes_on(client)
        assert len(begins(client)) == 3

        lose_container(plane, 1)                    # one lost node: its shim and its rank die without a word
        attempt_begins(client, 4)

        assert client.finish() == 0, client.lines
        (result,) = [line for line in client.lines if line.startswith("## losses")]
        assert ast.literal_eval(result.removeprefix("## losses ")) == undisturbed()


def saved(client: Client) -> list[int]:
    return [int(one[1]) for line in client.lines if (one := re.search(r"rank 0: saved step (\d+)", line))]


def lose_container(plane: Live, rank: int) -> None:
    pids = processes_of(plane.containers("train")[rank])
    shims = {parent for pid in pids if (parent := _parent(pid)) not in pids and parent > 1}
    for pid in (*shims, *pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:      # it went with its parent
            continue


def _parent(pid: int) -> int:
    return int(re.search(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]
