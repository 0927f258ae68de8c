"""What a function asks in GPUs, read once when it is created, and held against the fleet's nodes.

The client only upper-cases the type and splits off the count (reference: platform-behaviour.md 3.1); what a type means,
which upgrades it allows and how many GPUs its nodes have is said in model/gpus.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.model.fleet import Node
from phalanx.model.gpus import ANY, KNOWN_TYPES, GpuChoice, accepted_types, parse_gpu, real_shape

# Types whose machines come with an RDMA network in the field. A fleet's own node of another type may have one, and say so.
RDMA_TYPES = ("H100", "H200", "B200", "B200+", "B300", "GB200", "GB300", ANY)


def read_gpus(asked: Sequence[tuple[str, int]], fleet: Iterable[Node] = ()) -> list[GpuChoice]:
    """`[("H100!", 8), ("A100", 4)]`, as the client sends them, to choices in the same order. Raises ValueError with a sentence."""
    of_the_fleet = {node.gpu_type.upper() for node in fleet} - {"", ANY.upper()}
    choices = []
    for gpu_type, count in asked:
        if count < 1:
            raise ValueError(f"gpu='{gpu_type}:{count}': the count must be a positive whole number, as in '{gpu_type}:1'")
        name = gpu_type.upper().rstrip("!")
        if name in of_the_fleet and name not in KNOWN_TYPES:
            choices.append(GpuChoice(name, count, exact=True))
            continue
        try:
            choices.append(parse_gpu(f"{gpu_type}:{count}"))
        except ValueError:
            raise ValueError(_unknown(gpu_type, count, of_the_fleet)) from None
    return choices


def counts_on_nodes(choice: GpuChoice, fleet: Iterable[Node]) -> list[int]:
    """How many GPUs the fleet's nodes that can serve a choice have, down ones too; without such a node, what the field has."""
    counts = {node.gpus_of(gpu_type) for node in fleet for gpu_type in node.types_for(choice)} - {0}
    return sorted(counts) or [real_shape(accepted_types(choice)[0])]


def allows_rdma(choice: GpuChoice, fleet: Iterable[Node]) -> bool:
    """Is there RDMA on machines of this type, in the field or in this fleet?"""
    if choice.gpu_type in RDMA_TYPES:
        return True
    return any(node.rdma and not node.simulated and node.types_for(choice) for node in fleet)


def _unknown(gpu_type: str, count: int, of_the_fleet: set[str]) -> str:
    known = [*KNOWN_TYPES, *sorted(of_the_fleet - set(KNOWN_TYPES))]
    return f"gpu='{gpu_type}:{count}': unknown GPU type '{gpu_type}'; known: {', '.join(known)}. 'H100!' means an H100 and no upgrade."
