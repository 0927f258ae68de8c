"""Preemption as a what-if: whole victims, the cheapest work first, and only when the gang then starts."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.model.fleet import Hold
from phalanx.model.plan import Evict, Policy, Request
from phalanx.scheduler.index import Cell, Fabric
from phalanx.scheduler.ledger import Ledger, Target
from phalanx.scheduler.quota import Quotas
from phalanx.scheduler.reserve import Claim, blocks, place_of, places


@dataclass(slots=True)
class _Unit:
    """What falls free together: one gang, or a node with all who share it."""

    who: str
    holds: tuple[Hold, ...]
    back: dict[Cell, int]
    cost: int           # node-milliseconds of work that are lost
    ending: bool        # was told to stop already: no new victim


def victims(
    ledger: Ledger, request: Request, quotas: Quotas, policy: Policy, claims: list[Claim], evicted: set[str]
) -> tuple[list[Evict], Claim] | None:
    """The cheapest set of whole victims after which the request starts, with its claim on their nodes; None when no set does.

    A request that had others evicted `eviction_budget` times waits like everybody: a gang that crashes and comes back must not
    empty the fleet again and again (one did 548 times, by Meta's account of its clusters).
    """
    if request.warm or request.evictions >= policy.eviction_budget:
        return None
    best: tuple[tuple[int, int, int, str], list[_Unit], Claim] | None = None
    for target in ledger.view(request).targets:
        for name, total in sorted(target.totals.items()):
            if total < request.size:
                continue
            found = _on_fabric(ledger, request, quotas, target, name, claims, evicted)
            if found is None:
                continue
            units, claim = found
            new = [u for u in units if not u.ending]
            rank = (max((h.priority for u in new for h in u.holds), default=0), sum(u.cost for u in new), len(new), name)
            if best is None or rank < best[0]:
                best = (rank, units, claim)
    if best is None:
        return None
    _, units, claim = best
    claim.start_ms = ledger.now_ms + policy.grace_ms
    out = [Evict(h.holder_id, request.request_id, _lost(h, ledger.now_ms)) for u in units if not u.ending for h in u.holds]
    out = sorted({e.holder_id: e for e in out}.values(), key=lambda e: e.holder_id)
    return (out, claim) if out else None


def _on_fabric(
    ledger: Ledger, request: Request, quotas: Quotas, target: Target, name: str, claims: list[Claim], evicted: set[str]
) -> tuple[list[_Unit], Claim] | None:
    size = target.fabric_size
    there = places(ledger, target, name)
    for claim in claims:
        if claim.fabric == name:
            fullest = max(there, key=lambda place: (there[place], place), default="")
            there[fullest] = there.get(fullest, 0) - claim.need
    chosen: list[_Unit] = []
    after = quotas.copy()
    for unit in sorted(_units(ledger, ledger.index.fabrics[name], request, quotas, evicted), key=_cheapest):
        if blocks(there, size) >= request.size:
            break
        if any(cell.shape in target.shapes for cell in unit.back):
            _add(there, unit.back, target, 1)
            chosen.append(unit)
    if blocks(there, size) < request.size:
        return None
    for unit in sorted(chosen, key=lambda u: (u.ending, -u.cost, u.who)):     # the dearest first: is it needed at all?
        _add(there, unit.back, target, -1)
        if blocks(there, size) >= request.size and len(chosen) > 1:
            chosen.remove(unit)
        else:
            _add(there, unit.back, target, 1)
    for unit in chosen:
        for hold in unit.holds:
            after.give(hold)
    if after.refusal(request) is not None:
        return None
    return chosen, Claim(request.request_id, name, ledger.now_ms, request.size, target, there)


def _units(ledger: Ledger, fabric: Fabric, request: Request, quotas: Quotas, evicted: set[str]) -> list[_Unit]:
    now = ledger.now_ms
    found = []
    for who, back in fabric.parts.items():
        names = fabric.shares.get(who, (who,))
        holds = tuple(ledger.index.holds[n] for n in names if n in ledger.index.holds)
        if not holds or any(n in evicted for n in names):
            continue
        ending = all(h.ending for h in holds)
        if ending or all(h.ending or _may_evict(h, request, quotas, now) for h in holds):
            found.append(_Unit(who, tuple(h for h in holds if ending or not h.ending), back, sum(_lost(h, now) for h in holds), ending))
    return found


def _may_evict(hold: Hold, request: Request, quotas: Quotas, now_ms: int) -> bool:
    if hold.preemptible_after_ms is None or hold.preemptible_after_ms > now_ms:
        return False
    return hold.warm or hold.priority < request.priority or quotas.may_reclaim(request, hold)


def _cheapest(unit: _Unit) -> tuple[bool, bool, int, int, str]:
    warm = all(h.warm for h in unit.holds)
    return not unit.ending, not warm, max(h.priority for h in unit.holds), unit.cost, unit.who


def _lost(hold: Hold, now_ms: int) -> int:
    return 0 if hold.warm else len(hold.node_ids) * max(0, now_ms - hold.since_ms)


def _add(there: dict[str, int], back: dict[Cell, int], target: Target, sign: int) -> None:
    for cell, count in back.items():
        if cell.shape in target.shapes:
            place = place_of(cell, target.fabric_size)
            there[place] = there.get(place, 0) + sign * count
