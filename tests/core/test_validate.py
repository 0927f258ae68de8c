from __future__ import annotations

from typing import Any

import pytest

from phalanx.core.validate import Rules, complaints, scaling_complaints
from phalanx.model.fleet import Node
from phalanx.model.gpus import GpuChoice
from phalanx.model.plan import Ask, Request
from phalanx.model.reasons import sentence as sentence_of
from phalanx.model.work import Function
from phalanx.scheduler.fit import can_ever_fit

FLEET = tuple(Node(f"node-{n}", gpu_type="any", gpu_count=8, simulated=True, rdma=True) for n in range(4))


def cluster(size: int = 4, gpu: tuple[str, int, bool] = ("H100", 8, False), **settings: Any) -> Function:
    settings.setdefault("gpus", [list(gpu)])
    return Function("fu-1", "ap-1", "train", size=size, clustered=True, **settings)


def plain(**settings: Any) -> Function:
    return Function("fu-1", "ap-1", "work", **settings)


ACCEPTED = [
    cluster(),
    cluster(gpu=("A10", 4, False)),
    cluster(rdma=True, fabric_size=2, min_nodes=8, max_nodes=8, buffer_nodes=4),
    cluster(size=1, min_nodes=3),
    plain(),
    plain(gpus=[["H100", 4, False]], min_nodes=3, timeout_s=86_400),
]


@pytest.mark.parametrize("function", ACCEPTED)
def test_what_is_right_is_not_complained_about(function: Function) -> None:
    assert complaints(function, Rules(fleet=FLEET)) == []


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (cluster(gpu=("H100", 4, False)), "'H100:4' on 'train': a cluster takes every GPU of its nodes, and nodes with H100 have 8; use"),
        (cluster(gpu=("H100", 1, True)), "use gpu='H100!:8'"),
        (cluster(gpus=[]), "'train' is a cluster of 4 without a GPU"),
        (cluster(min_nodes=6), "min_containers=6 on 'train': must be a multiple of 4, since a cluster is 4 containers; use 4 or 8"),
        (cluster(max_nodes=2), "max_containers=2 on 'train': must be a multiple of 4, since a cluster is 4 containers; use 4"),
        (cluster(buffer_nodes=5), "buffer_containers=5 on 'train': must be a multiple of 4"),
        (cluster(min_nodes=8, max_nodes=4), "max_containers=4 on 'train': must not be below min_containers=8"),
        (cluster(fabric_size=3), "fabric_size=3 on 'train': must divide the cluster's size 4; use 1, 2 or 4"),
        (cluster(gpu=("L4", 8, False), rdma=True), "no machine with L4 has RDMA; use one of H100, H200, B200, B300, GB200"),
        (cluster(is_class=True, methods=["a", "b"]), "has 2 methods (a, b): a clustered class has exactly one"),
        (cluster(batch_max_size=4), "dynamic batching is not for clusters"),
        (plain(gpus=[["A10", 8, False]]), "gpu='A10:8' on 'work': nodes with A10 have 4"),
        (plain(fabric_size=2), "fabric_size=2 on 'work': only a cluster has one"),
        (plain(timeout_s=86_401), "timeout=86401 on 'work': from 1 to 86400 seconds (24 hours)"),
        (plain(startup_timeout_s=90_000), "startup_timeout=90000 on 'work'"),
        (plain(scaledown_s=4000), "scaledown_window=4000 on 'work': from 1 to 3600 seconds"),
        (plain(retries=11), "retries=11 on 'work': at most 10"),
        (plain(memory_mib=1024, memory_limit_mib=512), "memory=(1024, 512) on 'work': the limit must not be below the request"),
        (plain(cpu_milli=2000, cpu_limit_milli=1500), "cpu=(2, 1.5) on 'work': the limit must not be below the request"),
        (plain(disk_mib=4 * 2**20), "at most 3145728 MiB (3 TiB)"),
    ],
)  # fmt: skip
def test_each_complaint_names_the_value_and_what_is_allowed(function: Function, sentence: str) -> None:
    [found] = complaints(function, Rules(fleet=FLEET))
    assert sentence in found


@pytest.mark.parametrize(("have", "sentence"), [
    ("H200", "no node has H100; this fleet has H200, on which H100 without '!' runs"), ("A100", "no node has H100; this fleet has A100"),
])  # fmt: skip
def test_a_type_that_no_node_has_is_not_told_the_counts_of_other_fleets(have: str, sentence: str) -> None:
    """`H100!:1`: "use H100!:8" would only lead to the next refusal."""
    fleet = (Node("node-0", gpu_type=have, gpu_count=8),)
    assert complaints(cluster(gpu=("H100", 1, True)), Rules(fleet=fleet)) == []
    refusal = can_ever_fit(Request("new", 4, Ask(gpus=(GpuChoice("H100", 1, True),))), fleet)
    assert refusal is not None and sentence_of(refusal).endswith(sentence)


def test_the_owner_of_a_fleet_can_allow_clusters_without_gpus() -> None:
    assert complaints(cluster(gpus=[]), Rules(allow_cpu_clusters=True, fleet=FLEET)) == []


def test_a_web_function_is_not_clustered() -> None:
    [found] = complaints(cluster(), Rules(fleet=FLEET), is_web=True)
    assert "web function" in found


def test_a_function_has_a_size_limit() -> None:
    [found] = complaints(plain(), Rules(), packaged_bytes=20 * 2**20)
    assert "'work' is 20.0 MiB when packaged: at most 16 MiB" in found


def test_everything_that_is_wrong_is_said_at_once() -> None:
    assert len(complaints(cluster(gpu=("H100", 4, False), min_nodes=6, timeout_s=90_000), Rules(fleet=FLEET))) == 3


def test_scaling_is_checked_when_it_is_changed_later() -> None:
    assert scaling_complaints(cluster(), 8, 0, 0, 60) == []
    [found] = scaling_complaints(cluster(), 6, 0, 0, 60)
    assert "must be a multiple of 4" in found
