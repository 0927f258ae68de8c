"""A node as the server remembers it: what its agent said of it, and what people decided about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

UNKILLABLE = "UNKILLABLE"       # how `unschedulable` begins where SIGKILL did not end a container's processes


class ByHand(StrEnum):
    """What a person decided about a node. docs/states.md has the legal transitions, core/states.py the same table in code."""

    SERVING = "serving"
    CORDONED = "cordoned"       # no new work; what runs goes on
    DRAINING = "draining"       # no new work; what runs is to end
    DRAINED = "drained"         # nothing of any cluster is on it


@dataclass
class NodeRecord:
    """`facts` are the agent's (protocol NodeFacts, by field name). `connected` is of this server's life, not persisted truth."""

    KEY: ClassVar = ("node_id",)

    node_id: str
    agent_id: str
    engine: str = "local"
    hostname: str = ""
    gpu_type: str = ""
    gpu_count: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    simulated: bool = False
    rdma: bool = False
    shared_only: bool = False   # for plain functions: no cluster may have it
    region: str = ""
    zone: str = ""
    network: str = ""
    block: str = ""
    rack: str = ""
    fabric_id: str = ""
    runtime: str = ""
    runtime_reason: str = ""
    guarantees: dict[str, str] = field(default_factory=dict)
    python_versions: list[str] = field(default_factory=list)
    boot_id: str = ""
    unschedulable: str = ""     # by the agent, or for what remained of a container (design rule 10)
    cordoned: str = ""          # by a person, with the reason
    removed: bool = False
    last_seen_ms: int = 0
    by_hand: str = ByHand.SERVING
    decided_by: str = ""        # who said so, as they called themselves
    decided_ms: int = 0
