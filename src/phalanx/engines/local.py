"""The embedded fleet: this machine as N virtual nodes, or, with real GPUs, as the one node it is. Pure: what the machine has is told."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.model.gpus import ALIASES, REAL_SHAPE


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


def nodes(machine: Machine, count: int, gpus: int, gpu: str) -> list[LocalNode]:
    """The local fleet. Real GPUs decide alone: a real node never pretends, and there is one of it."""
    if machine.gpu_count:
        return [LocalNode(
            "node-0", machine.hostname, machine.gpu_type, machine.gpu_count, machine.cpu_milli, machine.memory_mib,
            simulated=False, rdma=machine.rdma, fabric_id=machine.fabric_id)]
    if count < 1:
        raise ValueError(f"a fleet of {count} nodes: at least 1 is needed")
    kind = gpu if gpus else ""
    whole = REAL_SHAPE.get(ALIASES.get(kind.upper(), kind.upper()), gpus)
    # Cores are shared by time, so each virtual node may offer all of them; memory is not, so each offers its part.
    return [LocalNode(
        f"node-{index}", f"{machine.hostname}-{index}", kind, min(gpus, whole), machine.cpu_milli,
        machine.memory_mib // count, simulated=True, rdma=True) for index in range(count)]
