"""Which of the free nodes: fewest blocks, racks and NVLink domains, best fit at every level, neighbours in rank next to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.scheduler.index import Domain

FreeNodes = Mapping[Domain, list[str]]


def choose(free: FreeNodes, size: int, fabric_size: int = 1) -> tuple[str, ...]:
    """`size` node ids in rank order, or () when they are not there. Every `fabric_size` consecutive ranks share an NVLink domain."""
    leaves = _leaves(free, fabric_size)
    wanted = size // fabric_size
    if sum(units for _, _, units in leaves) < wanted:
        return ()
    taken: list[tuple[Domain, list[str]]] = []
    _descend(leaves, 0, wanted, fabric_size, taken)
    return tuple(node_id for _, ids in sorted(taken) for node_id in ids)


def whole_blocks(counts: Iterable[tuple[Domain, int]], fabric_size: int) -> int:
    """How many nodes find room in whole blocks. A node without an NVLink domain can't be in a block."""
    of_domain: dict[str, int] = {}
    for domain, count in counts:
        if domain.nvlink:
            of_domain[domain.nvlink] = of_domain.get(domain.nvlink, 0) + count
    return sum(count // fabric_size for count in of_domain.values()) * fabric_size


_Leaf = tuple[Domain, list[str], int]
_LEVELS = len(Domain._fields)       # block, rack, NVLink domain: the fields of a Domain, in this order


def _leaves(free: FreeNodes, fabric_size: int) -> list[_Leaf]:
    if fabric_size <= 1:
        return [(domain, ids, len(ids)) for domain, ids in free.items()]
    merged: dict[str, tuple[Domain, list[str]]] = {}
    for domain in sorted(free):
        if domain.nvlink:     # one NVLink domain may span racks: it is one place for blocks all the same
            first, ids = merged.get(domain.nvlink, (domain, []))
            merged[domain.nvlink] = (first, ids + free[domain])
    return [(domain, ids, len(ids) // fabric_size) for domain, ids in merged.values()]


def _descend(leaves: list[_Leaf], level: int, wanted: int, each: int, taken: list[tuple[Domain, list[str]]]) -> None:
    """Take `wanted` units: from the smallest group that has them all, else the largest groups whole and then a tight last one."""
    if level == _LEVELS or len(leaves) == 1:
        for domain, ids, units in sorted(leaves):
            take = min(units, wanted)
            if take:
                taken.append((domain, ids[: take * each]))
            wanted -= take
        return
    groups: dict[str, list[_Leaf]] = {}
    for leaf in leaves:
        if leaf[2]:
            groups.setdefault(leaf[0][level], []).append(leaf)
    if len(groups) == 1:
        _descend(next(iter(groups.values())), level + 1, wanted, each, taken)
        return
    left = sorted((sum(leaf[2] for leaf in members), name) for name, members in groups.items())
    while wanted:
        tight = next((entry for entry in left if entry[0] >= wanted), None)
        units, name = tight if tight is not None else min(left, key=lambda entry: (-entry[0], entry[1]))
        take = min(units, wanted)
        _descend(groups[name], level + 1, take, each, taken)
        left.remove((units, name))
        wanted -= take
