"""Where a gang starts now: its preferred GPU type first, then the tightest fabric that no dated claim forbids."""

from __future__ import annotations

from phalanx.model.plan import Request, Start
from phalanx.scheduler.choose import choose
from phalanx.scheduler.index import Domain
from phalanx.scheduler.ledger import Choice, Ledger, Target
from phalanx.scheduler.reserve import Claim


def place_gang(ledger: Ledger, request: Request, claims: list[Claim]) -> Start | None:
    """All its nodes, booked in the ledger and in the claims; or None, and nothing changed."""
    end_ms = ledger.now_ms + request.expected_ms
    view = ledger.view(request)
    special = _special(ledger, request, end_ms)
    if not special and (request.size > view.largest or view.known_refusal(request.size, end_ms, ledger.version)):
        return None
    for target in view.targets:
        names = [name for _, name in target.fitting(request.size)]
        if special:
            names = sorted({*names, *(n for n in special if n in target.totals)}, key=lambda n: (target.counts[n], n))
        for name in names:
            if name in special:
                choice = _special_choice(ledger, request, target, name, special[name])
            else:
                choice = ledger.choice(name, target, request.size)
            nodes, cells = choice.nodes, choice.cells
            if not nodes or end_ms >= choice.refused_ms:
                continue
            here = [claim for claim in claims if claim.fabric == name]
            if not all(claim.allows(cells, end_ms) for claim in here):
                choice.refused_ms = end_ms
                continue
            for claim in here:
                claim.book(cells, end_ms)
            ledger.take(name, nodes, end_ms)
            ledger.starters.setdefault(name, []).append(request.request_id)
            return Start(request.request_id, nodes, name, target.option.gpu_type, target.option.gpus)
    if not special:
        # What is free only shrinks and claims only grow while a plan is made. But where it matters to a claim which nodes are chosen
        # (blocks, or one of several shapes), the refusal holds only until the next start.
        lasting = all(_blind(claim, target) for claim in claims for target in view.targets)
        view.refused.append((request.size, end_ms, -1 if lasting else ledger.version))
    return None


def _blind(claim: Claim, target: Target) -> bool:
    """The claim counts every node of the target alike, or none."""
    alike = target.shapes <= claim.target.shapes or target.shapes.isdisjoint(claim.target.shapes)
    return claim.target.fabric_size <= 1 and alike


# Per fabric: nodes the request must not use, and nodes beyond the free ones that it may.
_Special = dict[str, tuple[set[str], list[str]]]


def _special(ledger: Ledger, request: Request, end_ms: int) -> _Special:
    found: _Special = {}
    for node_id in sorted(request.excluded_nodes) if request.excluded_nodes else ():
        if node_id in ledger.index.home:
            found.setdefault(ledger.index.home[node_id], (set(), []))[0].add(node_id)
    for node_id in ledger.kept_for(request, end_ms):
        found.setdefault(ledger.index.home[node_id], (set(), []))[1].append(node_id)
    return found


def _special_choice(ledger: Ledger, request: Request, target: Target, name: str, special: tuple[set[str], list[str]]) -> Choice:
    """The same with exceptions: first the nodes kept for it, which no claim counts on, then free ones, then those kept for others."""
    refused, extra = special
    cells = ledger.index.fabrics[name].cells
    kept = [n for n in extra if cells[n].shape in target.shapes and n not in refused]
    own = [n for n in kept if n in ledger.kept.get(request.request_id, ())]
    free = [i for ids in ledger.free(name, target.shapes).values() for i in ids if i not in refused]
    nodes: tuple[str, ...] = ()
    if request.fabric_size <= 1 and 0 < len(own) < request.size:
        more = choose(_by_domain(ledger, name, free), request.size - len(own))
        nodes = tuple(sorted((*own, *more), key=lambda n: (cells[n].domain, n))) if more else ()
    for pool in (own, [*own, *free], [*kept, *free]):
        nodes = nodes or choose(_by_domain(ledger, name, pool), request.size, request.fabric_size)
    return Choice(nodes, ledger.cells_of(name, (n for n in nodes if n not in ledger.kept_until)))


def _by_domain(ledger: Ledger, name: str, node_ids: list[str]) -> dict[Domain, list[str]]:
    found: dict[Domain, list[str]] = {}
    for node_id in sorted(node_ids):
        found.setdefault(ledger.index.fabrics[name].cells[node_id].domain, []).append(node_id)
    return found
