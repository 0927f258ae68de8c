"""What the planner knows about machines: a node with its facts, what sits on nodes, and what an engine could add."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from phalanx.model.gpus import ANY, GpuChoice, accepted_types, real_shape


class NodeState(StrEnum):
    """May work be placed here? Everything but UP says no and carries a reason."""

    UP = "up"
    CORDONED = "cordoned"    # an operator said: nothing new
    DRAINING = "draining"    # what runs is to end: an operator, a health finding or a scheduled event
    DRAINED = "drained"      # nothing runs on it any more
    DOWN = "down"            # not heard of, or declared dead


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. Strings are "" and numbers 0 where a fact is unknown; `fabric_id` is the NVLink domain."""

    node_id: str
    gpu_type: str = ""
    gpu_count: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    simulated: bool = False
    rdma: bool = False
    efa: bool = False
    cloud: str = ""
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    network: str = ""
    block: str = ""
    rack: str = ""
    fabric_id: str = ""
    shared_only: bool = False      # for plain functions: never anybody's whole
    state: NodeState = NodeState.UP
    state_reason: str = ""

    def gpus_of(self, gpu_type: str) -> int:
        """How many GPUs of `gpu_type` this node has. A simulated "any" node has the real shape of every type, up to its count."""
        if self.gpu_type == gpu_type:
            return self.gpu_count
        if self.gpu_type == ANY:
            return min(self.gpu_count, real_shape(gpu_type)) if gpu_type != ANY else self.gpu_count
        return 0

    def types_for(self, choice: GpuChoice) -> tuple[str, ...]:
        """The GPU types under which this node can serve a choice, best first; empty: it can't."""
        wanted = accepted_types(choice)
        if not self.gpu_type:
            return ()
        if wanted == (ANY,):
            return (self.gpu_type,)
        if self.gpu_type == ANY:
            return wanted[:1]
        return (self.gpu_type,) if self.gpu_type in wanted else ()


@dataclass(frozen=True, slots=True)
class Hold:
    """Something that sits on nodes: a cluster's gang (`whole`), or a container of a plain function (cpu, memory, GPUs of its node).

    `ends_ms` is the predicted end, None: unknown. A hold past its predicted end is expected to end any moment.
    """

    holder_id: str
    node_ids: tuple[str, ...]
    whole: bool = True
    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_count: int = 0
    since_ms: int = 0
    ends_ms: int | None = None
    workspace: str = ""
    function_id: str = ""
    priority: int = 0
    preemptible_after_ms: int | None = 0   # None: never evict; else the time from which it may be
    warm: bool = False                     # an idle warm cluster: given up to any waiting call
    ending: bool = False                   # its end was already commanded: not a victim again
    gpu_type: str = ""                     # what it was given; `gpu_count` of them on each of its nodes


@dataclass(frozen=True, slots=True)
class Retention:
    """Nodes kept for a gang that lost a member, awaits new nodes, or had others stopped. Open to others that end before `until_ms`."""

    request_id: str
    node_ids: tuple[str, ...]
    until_ms: int
    victims: tuple[str, ...] = ()          # holders that were stopped for it: while one of them is there, it waits for that


@dataclass(frozen=True, slots=True)
class Offer:
    """What an engine can add: up to `most` nodes like `node`, ready `boot_ms` after the order. `node` None: it can't say what.

    `most` counts what can still be ordered now, beyond what is on its way; None means without limit.
    """

    offer_id: str
    node: Node | None = None
    most: int | None = None
    boot_ms: int = 180_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """Nodes ordered and not yet registered: `count` of an offer, for one gang ("" for a pool), expected at `ready_ms`."""

    offer_id: str
    count: int
    ready_ms: int
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Rented:
    """A registered node that costs something while it is here: it may be given back when idle. `idle_since_ms` None: not idle."""

    node_id: str
    idle_since_ms: int | None = None
