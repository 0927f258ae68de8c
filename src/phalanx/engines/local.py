"""The embedded fleet: this machine as N virtual nodes, or, with real GPUs, as the one node it is. Pure: what the machine has is told."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.model.gpus import ALIASES, REAL_SHAPE

_SPARE_PART = 8        # of a machine with real GPUs: this part of its memory is for plain functions beside a cluster


@dataclass(frozen=True)
class Machine:
    """What the agent found: cpu in thousandths of a core, memory in MiB, GPUs as (type, count) with ("", 0) for none."""

    hostname: str
    cpu_milli: int
    memory_mib: int
    gpu_type: str = ""
    gpu_count: int = 0
    rdma: bool = False
    fabric_id: str = ""


@dataclass(frozen=True)
class LocalNode:
    """One node that the local engine supplies."""

    node_id: str
    hostname: str
    gpu_type: str
    gpu_count: int
    cpu_milli: int
    memory_mib: int
    simulated: bool
    rdma: bool
    fabric_id: str = ""
    shared_only: bool = False      # plain functions alone: no cluster may have it


def nodes(machine: Machine, count: int, gpus: int, gpu: str) -> list[LocalNode]:
    """The local fleet. Real GPUs decide alone: a real node never pretends, and there is one of it.

    Beside nodes with GPUs there is one without, for plain functions: a cluster on all the others calls its helpers there, or it would
    wait for itself.
    """
    if machine.gpu_count:
        spare = machine.memory_mib // _SPARE_PART
        return [
            LocalNode(
                "node-0", machine.hostname, machine.gpu_type, machine.gpu_count, machine.cpu_milli, machine.memory_mib - spare,
                simulated=False, rdma=machine.rdma, fabric_id=machine.fabric_id),
            _without_gpus(machine, spare, simulated=False)]
    if count < 1:
        raise ValueError(f"a fleet of {count} nodes: at least 1 is needed")
    kind = gpu if gpus else ""
    whole = REAL_SHAPE.get(ALIASES.get(kind.upper(), kind.upper()), gpus)
    # Cores are shared by time, so each virtual node may offer all of them; memory is not, so each offers its part.
    memory = machine.memory_mib // (count + bool(gpus))
    made = [LocalNode(
        f"node-{index}", f"{machine.hostname}-{index}", kind, min(gpus, whole), machine.cpu_milli, memory,
        simulated=True, rdma=True) for index in range(count)]
    return [*made, _without_gpus(machine, memory, simulated=True)] if gpus else made


def renamed(node: LocalNode, name: str) -> LocalNode:
    """With `name` in place of "node": a machine's agents need nodes of different names."""
    return replace(node, node_id=name + node.node_id.removeprefix("node"))


def _without_gpus(machine: Machine, memory_mib: int, simulated: bool) -> LocalNode:
    return LocalNode(
        "node-cpu", f"{machine.hostname}-cpu", "", 0, machine.cpu_milli, memory_mib, simulated, rdma=False, shared_only=True)
