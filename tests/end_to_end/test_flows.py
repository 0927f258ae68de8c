"""Every way to call a function, through the stock clients, over real containers."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.live import NEWEST, Live
from tests.harness.clients import OLDER_CLIENTS

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.root
EVERY_CLIENT = pytest.mark.parametrize("version", [NEWEST, *(pytest.param(v, marks=pytest.mark.full) for v in OLDER_CLIENTS)])


@EVERY_CLIENT
def test_plain_functions_in_every_way(live: Live, version: str) -> None:
    ended = live.program("flows.py", version=version)
    said = ended.said
    private = ipaddress.ip_address(said.pop("i6pn"))
    assert private in ipaddress.ip_network("fdaa::/16")
    assert said.pop("not_yet").startswith(("TimeoutError", "OutputExpiredError", "FunctionTimeoutError"))
    assert said.pop("cancelled").startswith(("InputCancellation", "RemoteError"))
    assert said == {
        "remote": 16, "map": [x * x for x in range(20)], "starmap": [3, 7], "async": 10, "generator": [0, 1, 2, 3, 4], "nested": 37,
        "serialized": 101, "concurrent": [0, 1, 2, 3], "class": [31, 71], "exception": "ValueError: 1 is not good",
        "map_exceptions": ["1 is not good", "2 is not good"], "spawn": [81, 81],
    }
    assert ended.out.count("counter says goodbye") == 2


@EVERY_CLIENT
def test_clustered_functions_in_every_way(live: Live, version: str) -> None:
    ended = live.program("clusters.py::main", version=version)
    said: dict[str, Any] = ended.said
    rank, ips, _ = said.pop("remote")
    assert rank == 0
    assert all(ipaddress.ip_address(ip) in ipaddress.ip_network("fdaa::/16") for ip in ips) and len(set(ips)) == 2
    knows_clustered_classes = version not in ("1.0.5", "0.73.173")
    assert said.pop("class", None) == ([[0, 15], [0, 35]] if knows_clustered_classes else None)
    assert said == {"map": [[0, 1], [0, 2], [0, 3]], "spawn": ["spawned", "spawned"], "generator": [[0, 0], [0, 1], [0, 2]],
                    "exception": ["only rank 1"]}
    lines = ended.out.splitlines()
    for rank in (0, 1):
        assert [line for line in lines if line.startswith(f"rank {rank} of 2 got ")] == [
            f"rank {rank} of 2 got {x}" for x in ("first", 1, 2, 3, "spawned")]
        entered = 2 if knows_clustered_classes else 0
        assert lines.count(f"rank {rank} enters") == lines.count(f"rank {rank} leaves") == entered


@EVERY_CLIENT
def test_variables_that_the_program_brings_along(live: Live, version: str) -> None:
    ended = live.program("variables.py", version=version, FROM_HERE="well hidden")
    plain = ended.said["plain"]
    assert plain.pop("PYTHONPATH").endswith(":/opt/mine") and plain.pop("MODAL_TASK_ID").startswith("ta-")
    knows_env = version not in ("1.0.5", "0.73.173")
    assert plain == {"GREETING": "hello from env" if knows_env else "hello", "FROM_HERE": "well hidden"}
    assert ended.said["cluster"] == "hello" and ended.out.count('## rank ["hello", "well hidden"]') == 2
    told = "".join((live.paths.state / f"{name}.log").read_text() for name in ("server", "agent", "front", "supervisor"))
    assert "well hidden" not in told


def test_a_cluster_on_every_node_calls_a_plain_function(another: Callable[..., Any]) -> None:
    with another(4) as plane:
        ended = plane.program("pi.py")
        assert ended.said == {"remote": "pi is about 3.141593", "map": ["pi is about 3.141593", "pi is about 6.283185"],
                              "spawn": "pi is about 31.415927"}
        assert all(ended.out.splitlines().count(f"bye from {rank}") == 1 for rank in range(4)), ended
        assert [node["node_id"] for node in plane.status()["nodes"]] == ["node-0", "node-1", "node-2", "node-3", "node-cpu"]


@pytest.mark.parametrize(
    ("example", "lines"),
    [
        ("smoke_test.py", {"returned: 0"}),
        ("trainer_class.py", {"rank 0 of 2 is ready", "rank 1 of 2 is ready", "rank 0 leaves", "rank 1 leaves"}),
        ("gather_on_rank_0.py", {"returned: 100"}),
        ("ranks_and_addresses.py", {"Running as the leader", "Running as rank 1", "returned: 2 IPv6 and 2 IPv4 addresses"}),
        pytest.param("train_model.py", set(), marks=pytest.mark.full),
        pytest.param("gpu_fault.py", {"returned: stopped after a fault", "returned: trained"}, marks=pytest.mark.full),
        pytest.param("announcement_train_model.py", set(), marks=pytest.mark.full),
    ],
)
def test_an_example_runs(live: Live, example: str, lines: set[str]) -> None:
    ended = live.modal("run", str(EXAMPLES / example))
    assert ended.code == 0, ended
    assert lines <= set(ended.out.splitlines())


@pytest.mark.parametrize("version", OLDER_CLIENTS)
def test_the_smoke_test_with_an_older_client(live: Live, version: str) -> None:
    ended = live.program("clusters.py::smoke", version=version)
    assert ended.said["remote"][0] == 0
    assert {f"rank {rank} of 2 got smoke" for rank in (0, 1)} <= set(ended.out.splitlines())
