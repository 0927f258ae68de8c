"""Fleets for simulation: from a table of racks, or N fabrics of M nodes."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from phalanx.model.fleet import Node


def read_topology(path: Path) -> tuple[Node, ...]:
    """A CSV of zone,block,rack,nodes: a block is a fabric, a rack a group of neighbours."""
    with path.open() as lines:
        rows = csv.DictReader(lines)
        missing = {"zone", "block", "rack", "nodes"} - set(rows.fieldnames or ())
        if missing:
            raise ValueError(f"{path}: column {', '.join(sorted(missing))} is missing; it has {', '.join(rows.fieldnames or ()) or 'none'}")
        return from_racks((row["zone"], row["block"], row["rack"], int(row["nodes"])) for row in rows)


def uniform(fabrics: int, nodes: int, rack: int = 8) -> tuple[Node, ...]:
    """`fabrics` networks of `nodes` nodes in racks of `rack`, each rack an NVLink domain."""
    racks = []
    for f in range(fabrics):
        for r in range((nodes + rack - 1) // rack):
            racks.append(("z", f"net-{f}", f"r{r:03}", min(rack, nodes - r * rack)))
    return from_racks(racks)


def parse_fleet(text: str) -> tuple[Node, ...]:
    """A path to a table of racks, or "7x128" or "3x288/18" (fabrics x nodes / rack size). Raises ValueError."""
    path = Path(text)
    if path.exists():
        listed = read_topology(path)
        if not listed:
            raise ValueError(f"fleet {text!r} has no nodes")
        return listed
    shape, _, rack = text.partition("/")
    fabrics, times, nodes = shape.partition("x")
    if not (times and fabrics.isdigit() and nodes.isdigit() and (not rack or rack.isdigit())):
        raise ValueError(f"fleet {text!r}: no such file, and not FABRICSxNODES[/RACK] as in 7x128 or 3x288/18")
    counts = int(fabrics), int(nodes), int(rack or 8)
    if 0 in counts:
        raise ValueError(f"fleet {text!r} has no nodes")
    return uniform(*counts)


def from_racks(racks: Iterable[tuple[str, str, str, int]]) -> tuple[Node, ...]:
    """Nodes of 8 H100 with RDMA for rows of (zone, network, rack, count)."""
    return tuple(
        Node(
            f"{network}-{rack}-{i:02}", "H100", 8, 128_000, 1 << 20, rdma=True,
            zone=zone, network=network, block=network, rack=rack, fabric_id=f"{network}-{rack}",
        )
        for zone, network, rack, count in racks
        for i in range(count)
    )  # fmt: skip
