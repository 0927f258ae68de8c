"""Pure pieces of the node room: the local fleet's facts, ranges, names, GPU models."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest

from phalanx.engines.local import Machine, nodes
from phalanx.node import bridge, programs
from phalanx.node.bytecode import compile_tree
from phalanx.node.choose import NoRuntime, choose
from phalanx.node.gpus import gpu_type
from phalanx.node.outfit import hosts

LAPTOP = Machine("laptop", cpu_milli=4000, memory_mib=16000)


def test_a_machine_without_gpus_is_n_simulated_nodes():
    *fleet, spare = nodes(LAPTOP, count=4, gpus=8, gpu="any")
    assert [node.node_id for node in fleet] == ["node-0", "node-1", "node-2", "node-3"]
    assert {(n.gpu_type, n.gpu_count, n.simulated, n.rdma, n.shared_only) for n in fleet} == {("any", 8, True, True, False)}
    assert {(n.cpu_milli, n.memory_mib) for n in (*fleet, spare)} == {(4000, 3200)}     # cores are shared by time, memory is divided
    assert (spare.node_id, spare.gpu_type, spare.gpu_count, spare.shared_only) == ("node-cpu", "", 0, True)
    assert len({node.hostname for node in (*fleet, spare)}) == 5


def test_a_machine_with_gpus_is_one_node_that_does_not_pretend_and_a_part_for_functions_without_gpus():
    node, spare = nodes(Machine("box", 96000, 512000, "H200", 8, rdma=True), count=16, gpus=4, gpu="B200")
    assert (node.gpu_type, node.gpu_count, node.simulated, node.memory_mib) == ("H200", 8, False, 448000)
    assert (spare.node_id, spare.gpu_count, spare.simulated, spare.memory_mib, spare.shared_only) == ("node-cpu", 0, False, 64000, True)


def test_simulated_nodes_have_the_shapes_that_types_have():
    assert nodes(LAPTOP, 1, 8, "A10")[0].gpu_count == 4
    assert nodes(LAPTOP, 1, 8, "H100")[0].gpu_count == 8
    [cpu_only] = nodes(LAPTOP, 1, 0, "any")
    assert (cpu_only.gpu_type, cpu_only.gpu_count) == ("", 0)
    with pytest.raises(ValueError, match="0 nodes"):
        nodes(LAPTOP, 0, 8, "any")


@pytest.mark.parametrize(("model", "name"), [
    ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
    ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
    ("NVIDIA A10G", "A10G"), ("NVIDIA A10", "A10"), ("Tesla T4", "T4"), ("NVIDIA L40S", "L40S"), ("NVIDIA L4", "L4"),
    ("NVIDIA B200", "B200"), ("NVIDIA GB200", "GB200"), ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090"),
])
def test_gpu_models_have_the_clients_names(model, name):
    assert gpu_type(model) == name


def test_a_range_that_the_machine_uses_is_not_chosen():
    name = bridge.bridge_name("ag-1")
    free = bridge._choose(name, "", [])
    assert free in bridge.CANDIDATES
    used = [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fdaa::/16")]
    with pytest.raises(bridge.NoRange, match=r"10\.112\.0\.0/14"):
        bridge._choose(name, "", used)
    other = bridge._choose(name, "", [ipaddress.ip_network(f"{free[5]}/32")])
    assert other != free
    assert bridge._choose(name, str(other), []) == other                    # the one it had
    assert bridge._choose(name, str(other), [other]) != other               # unless somebody took it meanwhile
    assert len(name) <= 15


def test_a_containers_own_name_never_leads_to_loopback():
    lines = hosts("train-1-0", "10.112.0.2", "fdaa:1:2:3::2").splitlines()
    assert [line.split()[0] for line in lines if line.endswith(" train-1-0")] == ["fdaa:1:2:3::2", "10.112.0.2"]
    assert "fdaa:1:2:3::2 i6pn.modal.local" in lines


def test_bytecode_trusts_packages_and_compares_the_users_own_files(tmp_path):
    for name in ("pkg/tool.py", "root/mine.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "root/broken.py").write_text("print 'python 2'\n")
    compile_tree(str(tmp_path))
    flags = {path.parent.parent.name: int.from_bytes(path.read_bytes()[4:8], "little") for path in tmp_path.rglob("*.pyc")}
    assert flags == {"pkg": 0b01, "root": 0b11}      # PEP 552: hash-based, and hash-based to be checked


def test_without_a_container_runtime_plain_processes_are_taken_and_it_is_said(monkeypatch):
    monkeypatch.setattr(programs, "find", lambda name: None)
    choice = asyncio.run(choose("auto", lambda prefix: pytest.fail("nothing is tried"), {}))
    assert (choice.runtime, choice.reason) == ("process", "plain processes without isolation (crun and runc not installed)")
    assert choice.guarantees["network"].startswith("no: ranks share the machine's loopback")
    with pytest.raises(NoRuntime, match=r"crun does not work here \(crun not installed\). `phalanx doctor` shows what brings it"):
        asyncio.run(choose("crun", lambda prefix: pytest.fail("nothing is tried"), {}))
