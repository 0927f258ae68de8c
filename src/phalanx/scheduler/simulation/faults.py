"""Nodes that die: a heavy-tailed rate per node, a fixed repair time, and a rack that goes down as a whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.model.fleet import Node

DAY_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Fault:
    """These nodes are down from `at_ms` until `back_ms`."""

    at_ms: int
    back_ms: int
    node_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultModel:
    """`per_1000_node_days` failures on average; a tenth of the nodes have most of them, as large fleets report (lemons)."""

    per_1000_node_days: float = 0.0
    repair_ms: int = 4 * 3_600_000
    checkpoint_ms: int = 30 * 60_000
    restart_ms: int = 10 * 60_000
    rack_at_ms: int | None = None     # one rack fails as a whole at this time
    seed: int = 1


def draw_faults(nodes: Sequence[Node], model: FaultModel, until_ms: int) -> list[Fault]:
    """All failures of a run, in time order."""
    draw = random.Random(model.seed)
    faults = []
    weights = [draw.paretovariate(1.5) for _ in nodes]
    mean = sum(weights) / len(weights)
    for node, weight in zip(nodes, weights, strict=True):
        rate = model.per_1000_node_days / 1000 / DAY_MS * weight / mean
        at = 0.0
        while rate > 0:
            at += draw.expovariate(rate)
            if at >= until_ms:
                break
            faults.append(Fault(round(at), round(at) + model.repair_ms, (node.node_id,)))
            at += model.repair_ms
    if model.rack_at_ms is not None:
        victim = draw.choice(nodes)
        rack = tuple(n.node_id for n in nodes if (n.network, n.rack) == (victim.network, victim.rack))
        faults.append(Fault(model.rack_at_ms, model.rack_at_ms + model.repair_ms, rack))
    return sorted(faults, key=lambda f: (f.at_ms, f.node_ids))
