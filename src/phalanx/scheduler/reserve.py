"""Dated claims: when could a gang start, and may another one take these nodes without moving that date."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop

from phalanx.model.fleet import NodeState
from phalanx.model.plan import Request
from phalanx.scheduler.index import NEVER, Cell, Fabric
from phalanx.scheduler.ledger import Ledger, Target
from phalanx.scheduler.reach import soonest


@dataclass(slots=True)
class Claim:
    """`request_id` starts on `fabric` at `start_ms` with `need` nodes of the shapes. `there` is what will be there then, by place.

    A place is an NVLink domain when the gang wants blocks, else the whole fabric.
    """

    request_id: str
    fabric: str
    start_ms: int
    need: int
    target: Target
    there: dict[str, int]

    def allows(self, cells: dict[Cell, int], end_ms: int) -> bool:
        """Would the date still hold if nodes of these cells were busy until `end_ms`?"""
        if end_ms <= self.start_ms:
            return True
        left = dict(self.there)
        add(left, cells, self.target, -1)
        return blocks(left, self.target.fabric_size) >= self.need

    def book(self, cells: dict[Cell, int], end_ms: int) -> None:
        """Others took them."""
        if end_ms > self.start_ms:
            add(self.there, cells, self.target, -1)


def earliest(
    ledger: Ledger, request: Request, claims: Iterable[Claim] = (), avoid: frozenset[str] = frozenset(), stay: frozenset[str] = frozenset()
) -> Claim | None:
    """The claim with the earliest start: on the fabric, and with the GPU type, where enough nodes come back first. None: not foreseeable.

    `stay`: holders on whose end the request must not count.

    What earlier claims need on a fabric is taken as gone for good: their gangs start there, and nobody knows them to end in time.
    """
    claimed: dict[str, list[Claim]] = {}
    for claim in claims:
        claimed.setdefault(claim.fabric, []).append(claim)
    best: tuple[int, int, str, int, Claim] | None = None
    targets = ledger.view(request).targets
    left = [bound for rank, target in enumerate(targets) for bound in soonest(ledger.reaches(target), request.size, rank)]
    heapify(left)
    while left:
        bound_ms, rank, name = heappop(left)
        limit = best[0] if best else NEVER
        if bound_ms > limit or bound_ms >= NEVER:
            break
        if name in avoid or targets[rank].totals.get(name, 0) < request.size:
            continue
        found = _on_fabric(ledger, request, targets[rank], name, claimed.get(name, []), limit, stay)
        if found is not None:
            spare = sum(found.there.values()) - request.size
            entry = (found.start_ms, -spare, name, rank, found)
            if best is None or entry[:4] < best[:4]:
                best = entry
    return best[4] if best else None


def _on_fabric(
    ledger: Ledger, request: Request, target: Target, name: str, earlier: list[Claim], limit: int, stay: frozenset[str]
) -> Claim | None:
    fabric = ledger.index.fabrics[name]
    size = target.fabric_size
    there = places(ledger, request, target, name)
    gone = sum(c.need for c in earlier)
    excluded = excluded_on(ledger, request, name)
    need = request.size + gone
    have = blocks(there, size)
    start = ledger.now_ms if have >= need else None
    for end_ms, who, back, ids in ledger.timeline(name):
        if start is not None and end_ms > start:
            break
        if end_ms > limit or end_ms >= NEVER:
            return None
        if who in stay:
            continue
        for cell, count in (back_without(ledger, fabric, who, back, ids, excluded) if excluded else back).items():
            if cell.shape in target.shapes:
                if size <= 1:
                    have += count
                    continue
                place = cell.domain.nvlink
                before = there.get(place, 0)
                there[place] = before + count
                have += ((before + count) // size - before // size) * size if place else 0
        if start is None and have >= need:
            start = end_ms
    if start is None:
        return None
    if size <= 1:
        there[""] = have
    for place in sorted(there, key=lambda place: (-there[place], place)):      # what earlier claims need is gone, fullest places first
        gone -= (take := min(gone, max(0, there[place])))
        there[place] -= take
    return Claim(request.request_id, name, start, request.size, target, there)


def places(ledger: Ledger, request: Request, target: Target, name: str) -> dict[str, int]:
    """The free nodes of a fabric that the request may use, by place: what is kept for it counts, what it excludes doesn't."""
    fabric = ledger.index.fabrics[name]
    there = ledger.places(name, target)
    if not request.excluded_nodes and request.request_id not in ledger.kept:
        return there
    kept = [(n, 1) for n in ledger.kept.get(request.request_id, ()) if n not in ledger.given and n not in request.excluded_nodes]
    for node_id, change in (*kept, *((n, -1) for n in excluded_on(ledger, request, name) if ledger.is_free(n))):
        if ledger.index.home[node_id] == name and fabric.cells[node_id].shape in target.shapes:
            place = place_of(fabric.cells[node_id], target.fabric_size)
            there[place] = there.get(place, 0) + change
    return there


def excluded_on(ledger: Ledger, request: Request, name: str) -> frozenset[str]:
    """The nodes of a fabric that the request must not have."""
    if not request.excluded_nodes:
        return request.excluded_nodes
    return frozenset(n for n in request.excluded_nodes if ledger.index.home.get(n) == name)


def back_without(
    ledger: Ledger, fabric: Fabric, who: str, back: dict[Cell, int], ids: tuple[str, ...] | None, excluded: frozenset[str]
) -> dict[Cell, int]:
    """What comes back when a holder ends, less the excluded nodes. `ids`: its nodes, None: those of the hold `who`."""
    if ids is None:
        hold = ledger.index.holds.get(who)
        ids = (who,) if hold is None else hold.node_ids
    lost = [n for n in excluded.intersection(ids) if fabric.nodes[n].state is NodeState.UP]
    if not lost:
        return back
    back = dict(back)
    for node_id in lost:
        cell = fabric.cells[node_id]
        back[cell] = max(0, back.get(cell, 0) - 1)
    return back


def add(there: dict[str, int], cells: dict[Cell, int], target: Target, sign: int = 1) -> None:
    """Nodes of these cells come to what is there, by place, or with -1 leave it; those that the request can't use are no matter."""
    for cell, count in cells.items():
        if cell.shape in target.shapes:
            place = place_of(cell, target.fabric_size)
            there[place] = there.get(place, 0) + sign * count


def leave_out(there: dict[str, int], claim: Claim) -> None:
    """What a claim needs is no longer there: it is taken from the fullest place."""
    fullest = max(there, key=lambda place: (there[place], place), default="")
    there[fullest] = there.get(fullest, 0) - claim.need


def nodes_for(request: Request) -> int:
    """Of how many nodes the end helps a request: containers of a plain function share one."""
    return request.size if request.ask.whole else 1


def place_of(cell: Cell, fabric_size: int) -> str:
    return cell.domain.nvlink if fabric_size > 1 else ""


def blocks(there: dict[str, int], fabric_size: int) -> int:
    if fabric_size <= 1:
        return there.get("", 0)
    return sum(count // fabric_size * fabric_size for place, count in there.items() if place and count > 0)
