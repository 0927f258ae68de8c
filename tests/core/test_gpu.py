from __future__ import annotations

import pytest

from phalanx.core.gpu import allows_rdma, counts_on_nodes, read_gpus
from phalanx.model.fleet import Node
from phalanx.model.gpus import GpuChoice, accepted_types

SIMULATED = Node("node-0", gpu_type="any", gpu_count=8, simulated=True, rdma=True)
H100 = Node("node-1", gpu_type="H100", gpu_count=8, rdma=True)
SMALL_H100 = Node("node-2", gpu_type="H100", gpu_count=4)
A6000 = Node("node-3", gpu_type="RTX-A6000", gpu_count=2, rdma=True)


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        (("H100", 8), GpuChoice("H100", 8)),
        (("h100", 8), GpuChoice("H100", 8)),
        (("H100!", 8), GpuChoice("H100", 8, exact=True)),
        (("A10G", 1), GpuChoice("A10", 1)),
        (("A100-40GB", 2), GpuChoice("A100-40GB", 2)),
        (("B200+", 8), GpuChoice("B200+", 8)),
        (("ANY", 1), GpuChoice("any", 1)),
    ],
)
def test_types_are_read_as_users_write_them(asked: tuple[str, int], choice: GpuChoice) -> None:
    assert read_gpus([asked]) == [choice]


@pytest.mark.parametrize(
    ("asked", "types"),
    [
        ("H100", ("H100", "H200")),
        ("H100!", ("H100",)),
        ("A100", ("A100", "A100-40GB", "A100-80GB")),
        ("A100-80GB", ("A100-80GB",)),
        ("B200", ("B200",)),
        ("B200+", ("B200", "B300")),
        ("any", ("any",)),
    ],
)
def test_a_type_runs_on_itself_and_its_upgrades(asked: str, types: tuple[str, ...]) -> None:
    [choice] = read_gpus([(asked, 1)])
    assert accepted_types(choice) == types


def test_a_list_keeps_its_order() -> None:
    assert [str(choice) for choice in read_gpus([("H100", 8), ("A100-80GB", 4)])] == ["8 H100", "4 A100-80GB"]


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown GPU type 'H1000'; known: T4, L4, .*H100, H200"):
        read_gpus([("H1000", 8)])


def test_a_type_of_the_fleet_is_known() -> None:
    assert read_gpus([("RTX-A6000", 2)], [A6000]) == [GpuChoice("RTX-A6000", 2, exact=True)]


def test_a_count_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a positive whole number"):
        read_gpus([("H100", 0)])


@pytest.mark.parametrize(
    ("gpu", "fleet", "counts"),
    [
        ("H100", [], [8]),
        ("H100", [SIMULATED], [8]),
        ("A10", [SIMULATED], [4]),
        ("GB200", [SIMULATED], [4]),
        ("H100", [H100, SMALL_H100], [4, 8]),
        ("B200", [H100], [8]),
        ("any", [SMALL_H100, A6000], [2, 4]),
    ],
)
def test_counts_are_those_of_the_fleet_or_of_the_field(gpu: str, fleet: list[Node], counts: list[int]) -> None:
    assert counts_on_nodes(read_gpus([(gpu, 1)])[0], fleet) == counts


def test_rdma_is_where_the_field_or_the_fleet_has_it() -> None:
    assert allows_rdma(GpuChoice("H100"), [])
    assert not allows_rdma(GpuChoice("L4"), [SIMULATED])
    assert allows_rdma(GpuChoice("RTX-A6000", exact=True), [A6000])
