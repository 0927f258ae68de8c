"""CUDA and NCCL in a runner that was forked from a zygote, on a machine with NVIDIA GPUs. Skips elsewhere.

A fork of a process that had CUDA could not use it. So a zygote has nothing of it, and nothing that the fork then does is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import fleet
from tests.end_to_end.live import Live
from tests.end_to_end.test_gpu_machine import EXTRA, GPUS, HERE, with_torch
from tests.harness.waiting import until
from tests.node.test_zygote import the_zygote

pytestmark = [pytest.mark.root, pytest.mark.timeout(400), pytest.mark.skipif(not GPUS.count, reason="no NVIDIA GPU here")]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with fleet(tmp_path_factory.mktemp("forked") / "state", 1, extra=EXTRA) as plane:
        yield plane


def forked(machine: Live, story: str) -> dict[str, Any]:
    """What the program saw in a container that was forked: the ones before it, while the zygote imports, were started."""
    def ran() -> dict[str, Any] | None:
        seen: dict[str, Any] = machine.program(f"gpu_forked.py::{story}", **HERE).said["seen"]
        print(seen)
        return seen if seen["forked"] else None

    seen: dict[str, Any] = until(ran, 90)
    assert (seen["torch"], seen["libraries"], seen["held"], seen["seccomp"]) == (False, [], [], 2)
    return seen


def test_a_zygote_has_nothing_of_cuda(machine):
    forked(machine, "plain")
    zygote = Path(f"/proc/{the_zygote(machine)}")
    assert not [line for line in (zygote / "maps").read_text().splitlines() if "cuda" in line or "nvidia" in line]
    assert not [link for link in map(os.readlink, (zygote / "fd").iterdir()) if link.startswith("/dev/nvidia")]


@with_torch
def test_a_forked_runner_has_cuda(machine):
    seen = forked(machine, "cuda")
    assert (seen["sum"], seen["pinned"]) == (float(1 << 30), float(1 << 20))
    assert "/dev/nvidiactl" in seen["after"]
    assert seen["kernels"]                                      # the profiler sees the card's work
    assert (seen["handed"]["code"], seen["handed"]["found"]) == (0, [1000.0]), seen["handed"]


@with_torch
def test_nccl_joins_the_cards_of_a_node(machine):
    seen = forked(machine, "nccl")
    assert seen["code"] == 0, seen
    assert [[rank, right] for rank, right, *_ in seen["found"]] == [[rank, True] for rank in range(GPUS.count)]
