"""A machine with NVIDIA GPUs is one node that hands them over, and has them back. Skips elsewhere.

Programs use this machine's own torch, where the Python that runs the tests has one.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.node.gpus import find_gpus
from tests.end_to_end.conftest import fleet
from tests.end_to_end.live import PROGRAMS, Live

GPUS = find_gpus()
TORCH = importlib.util.find_spec("torch")
HERE = {"GPU_KIND": GPUS.type, "GPU_COUNT": str(GPUS.count)}

pytestmark = [pytest.mark.root, pytest.mark.timeout(400), pytest.mark.skipif(not GPUS.count, reason="no NVIDIA GPU here")]
with_torch = pytest.mark.skipif(TORCH is None, reason="no torch here")


EXTRA = {"image.site_packages": str(Path(TORCH.origin).parent.parent)} if TORCH is not None and TORCH.origin else {}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    # Four nodes of eight B200 are asked for: real cards decide alone.
    with fleet(tmp_path_factory.mktemp("gpu") / "state", 4, gpus=8, gpu="B200", extra=EXTRA) as plane:
        yield plane


def test_the_machine_is_one_node_with_its_own_cards(machine):
    node, spare = machine.status()["nodes"]
    print(node)
    assert (spare["node_id"], spare["gpu_count"], spare["shared_only"]) == ("node-cpu", 0, True)
    assert (node["gpu_type"], node["gpu_count"], bool(node.get("simulated"))) == (GPUS.type, GPUS.count, False)


@with_torch
def test_torch_computes_on_them_alone_and_in_a_cluster(machine):
    said = machine.program("gpu.py::see", **HERE).said
    print(said)
    for seen, count in ((said["alone"], 1), (said["whole"], GPUS.count)):
        assert (seen["available"], seen["devices"], seen["right"], len(seen["cards"])) == (True, count, True, count)
        assert seen["across"]           # a copy from the first card to the last
        assert seen["name"] == GPUS.cards[0].model
        assert seen["caps"] == []       # who may divide the cards is the machine owner's to say
    assert (said["whole"]["rank"], len(said["whole"]["ips"])) == (0, 1)


def test_a_killed_programs_memory_is_free_before_its_node_is(machine):
    ended = machine.program("gpu.py::after_a_kill", **HERE)
    print(ended)
    before, after = ended.said["before"], ended.said["after"]
    assert (before["processes"], after["processes"]) == ([], [])
    for was, now in zip(before["cards"], after["cards"], strict=True):
        assert abs(int(now["memory.used"]) - int(was["memory.used"])) <= 64      # MiB
    assert "SIGKILL" in ended.said["error"]
    [line] = [line for line in ended.out.splitlines() if line.startswith("before the kill:")]
    assert int(json.loads(line.partition(": ")[2])["cards"][0]["memory.used"]) > 21 << 10


@pytest.mark.skipif(GPUS.count < 2, reason="one card is nothing to share")
def test_plain_functions_side_by_side_have_cards_of_their_own(machine):
    found = machine.program("gpu.py::side_by_side", **HERE).said["cards"]
    print(found)
    assert [len(cards) for cards in found] == [1] * GPUS.count
    assert {cards[0]["uuid"] for cards in found} == {card.uuid for card in GPUS.cards}


@pytest.mark.skipif(GPUS.count < 2, reason="one card is nothing to share")
def test_an_agent_that_was_killed_gives_nobody_a_card_that_is_in_use(machine):
    program = f"{PROGRAMS}/gpu.py::hold_one"
    with machine.running("run", program, "--seconds", "30", **HERE) as holder:
        holder.wait_for("holding")
        machine.kill("agent")
        [other] = machine.program("gpu.py::hold_one", "--seconds", "0", **HERE).said["cards"]
        [held] = json.loads(holder.wait_for("## cards")[0].split(" ", 2)[2])
    assert held["uuid"] != other["uuid"]


@with_torch
def test_a_function_that_asks_for_none_sees_none(machine):
    assert machine.program("gpu.py::none", **HERE).said["without"] == [False, []]


@with_torch
def test_plain_processes_have_the_cards_they_ask_for(tmp_path):
    plane = Live(tmp_path / "state", 1, "process", extra=EXTRA)
    plane.up()
    try:
        said = plane.program("gpu.py::see", **HERE).said
        print(said)
        assert [said[name]["devices"] for name in ("alone", "whole")] == [1, GPUS.count]
        assert not plane.program("gpu.py::none", **HERE).said["without"][0]
    finally:
        plane.down()


def test_more_cards_than_the_node_has_are_refused_with_its_counts(machine):
    for kind in (GPUS.type, "H100"):
        ended = machine.modal("run", f"{PROGRAMS}/gpu_ask.py", GPU_ASK=f"{kind}:{GPUS.count * 8}")
        print(ended)
        assert ended.code != 0
        assert f"{kind}:{GPUS.count * 8}" in ended.err + ended.out


@pytest.mark.skipif(GPUS.type != "H200", reason="about H100 and H200")
def test_an_h100_may_be_an_h200_unless_it_is_asked_for_exactly(machine):
    program = f"{PROGRAMS}/gpu_ask.py"
    assert "## ended 1" in machine.modal("run", program, GPU_ASK=f"H100:{GPUS.count}").out
    exact = machine.modal("run", program, GPU_ASK=f"H100!:{GPUS.count}")
    print(exact)
    assert exact.code != 0
