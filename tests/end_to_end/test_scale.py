"""Sixteen ranks, two such clusters at once, and many clusters one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.end_to_end.inside import open_files, touch
from tests.end_to_end.live import PATIENCE_S, PROGRAMS, Live
from tests.harness.waiting import until

pytestmark = pytest.mark.root
LENGTH = 1000
SUM = 16 * 17 // 2 * LENGTH * (LENGTH - 1) // 2
RING = f"{PROGRAMS / 'sockets.py'}::ring"


def test_sixteen_ranks_reduce_over_ipv6_and_ipv4(live: Live) -> None:
    ended = live.program("sockets.py::ring", "--length", str(LENGTH), CLUSTER_SIZE="16")
    assert ended.said["sum"] == SUM
    assert {f"rank {rank} has the sum" for rank in range(16)} <= set(ended.out.splitlines())


@pytest.mark.full
@pytest.mark.timeout(900)
def test_two_apps_with_sixteen_ranks_each_at_once(another: Callable[..., Any]) -> None:
    with another(32) as plane:
        command = ("run", RING, "--length", str(LENGTH), "--wait")
        with plane.running(*command, CLUSTER_SIZE="16") as one, plane.running(*command, CLUSTER_SIZE="16") as other:
            for client in (one, other):
                client.wait_for("is there", times=16)
            clusters = plane.status()["clusters"]
            assert [(cluster["size"], cluster["state"]) for cluster in clusters] == [(16, "running")] * 2
            assert len({cluster["app_id"] for cluster in clusters}) == 2
            assert len({node for cluster in clusters for node in cluster["nodes"]}) == 32
            for cluster in clusters:
                for task in cluster["containers"]:
                    touch(task, "/tmp/go")
            for client in (one, other):
                assert client.finish() == 0, client.lines
                assert f"## sum {SUM}" in client.lines


@pytest.mark.parametrize("times", [8, pytest.param(200, marks=[pytest.mark.full, pytest.mark.timeout(1800)])])
def test_clusters_one_after_the_other_leave_nothing(live: Live, times: int) -> None:
    """Each call gets a cluster of its own: no process, link, mount, cgroup, folder or open file more at the end than at the beginning."""
    live.program("survive.py::one_after_the_other", "--times", "2")       # what is made once is there
    live.wait_until_empty()
    before, files = live.traces(), {name: open_files(live.pid(name).pid) for name in ("server", "agent", "front")}
    clusters = live.program("survive.py::one_after_the_other", "--times", str(times), patience_s=PATIENCE_S + 8 * times).said["clusters"]
    assert [x for _, x in clusters] == list(range(times))
    assert len({cluster for cluster, _ in clusters}) == times
    live.wait_until_empty()
    assert live.traces() - before == {}
    for name, count in files.items():
        until(lambda name=name, count=count: open_files(live.pid(name).pid) <= count + 4)  # type: ignore[misc]
