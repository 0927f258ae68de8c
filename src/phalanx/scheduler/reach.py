"""How soon could a fabric have so many nodes? A bound that is never too late, read off lists that are kept from plan to plan.

What is free and what the fleet's holds give back never suffices sooner for one plan than for the index: what the plan has taken or keeps
was free there, what it started gives back no more than it took, a hold past its predicted end takes longer, and whole blocks take no fewer
nodes. So of hundreds of fabrics only those have their timeline read whose bound is before the best date so far: 6 of 397 for a claim at
100,000 nodes, where 176 were.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from phalanx.scheduler.index import Fabric

# Name of a fabric, ends of its holds, and how many nodes are there then; both rising. The first entry is now.
Reach = tuple[str, list[int], list[int]]


def soonest(reaches: Iterable[Reach], need: int, rank: int) -> list[tuple[int, int, str]]:
    """(date, rank, fabric): no earlier are `need` nodes free there, 0 when they may be now. Those are left out that never have so many."""
    return [(ends[at], rank, name) for name, ends, have in reaches if (at := bisect_left(have, need)) < len(ends)]


def reach_of(fabric: Fabric, shapes: frozenset[int]) -> Reach:
    """Read once, until an event touches the fabric."""
    known = fabric.reaches.get(shapes)
    if known is None:
        known = fabric.reaches[shapes] = _read(fabric, shapes)
    return known


def _read(fabric: Fabric, shapes: frozenset[int]) -> Reach:
    parts, releases = fabric.parts, fabric.releases
    free = sum(fabric.free_count.get(shape, 0) for shape in shapes)
    if shapes.issuperset(fabric.sizes):     # the usual case, all nodes alike
        back = [sum(parts[who].values()) for _, who in releases]
    else:
        back = [sum(n for cell, n in parts[who].items() if cell.shape in shapes) for _, who in releases]
    return fabric.name, [0, *(end_ms for end_ms, _ in releases)], list(accumulate(back, initial=free))
