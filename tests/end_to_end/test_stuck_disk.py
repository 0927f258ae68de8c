"""A rank hangs in the kernel, where SIGKILL does not reach it: the cluster goes on elsewhere, and its node returns when the disk does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.end_to_end.inside import processes_of, touch
from tests.end_to_end.live import PROGRAMS, Live
from tests.harness.waiting import until
from tests.node.stuck_folder import StuckFolder, why_not

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def out_of_service(live: Live) -> dict[str, str]:
    return {node["node_id"]: node["unschedulable"] for node in live.status()["nodes"] if node["unschedulable"]}


def test_case_74_the_cluster_goes_on_elsewhere_and_the_node_comes_back_by_itself(another: Callable[..., Any]) -> None:
    with another(3) as live, live.running("run", str(PROGRAMS / "stuck.py")) as client:
        client.wait_for("loads, attempt 1", times=2)
        rank_0, rank_1 = live.containers("load")
        node = next(cluster["nodes"][1] for cluster in live.status()["clusters"] if cluster["function"] == "load")
        with StuckFolder("/tmp/disk", processes_of(rank_1)[-1]) as disk:
            assert disk.asked.wait(30)
            touch(rank_0, "/tmp/disk")      # it fails now; rank 1 is interrupted, killed, and given up
            client.wait_for("loads, attempt 2", times=2)
            told = out_of_service(live)
            assert list(told) == [node] and told[node].startswith(f"UNKILLABLE: {rank_1}: process ")
            assert f"UNKILLABLE: {rank_1}" in live.phalanx("node", "list").out.replace("\n", "")
            client.wait_for("## load")
            until(lambda: f"1 draining (UNKILLABLE: {rank_1}" in live.phalanx("explain", "wide").out)
        assert client.finish() == 0, client.lines
        assert '## wide "all three"' in client.lines
        assert not out_of_service(live)
