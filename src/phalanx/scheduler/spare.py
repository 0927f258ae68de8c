"""Idle containers that make room for a container of a plain function: on a shared node, or in its queue's quota."""

from __future__ import annotations

from phalanx.model.fleet import Hold, Node, NodeState
from phalanx.model.plan import Request
from phalanx.scheduler.fit import Option
from phalanx.scheduler.index import NEVER, Cell
from phalanx.scheduler.ledger import Ledger
from phalanx.scheduler.quota import Quotas
from phalanx.scheduler.reserve import Claim


def idle_beside(ledger: Ledger, request: Request, claims: list[Claim], named: set[str]) -> list[str] | None:
    """The fewest idle holders of one shared node after whose end the request fits there; [] where those ending already are enough.

    None: no shared node has such, or only ones that a dated claim counts on. `named`: told to stop for others by this plan.
    """
    best: tuple[int, str, list[str]] | None = None
    for target in ledger.view(request).targets:
        for name in sorted(target.counts):
            fabric = ledger.index.fabrics[name]
            for node_id, holders in sorted(fabric.shares.items()):
                node, cell = fabric.nodes[node_id], fabric.cells[node_id]
                usable = node.state is NodeState.UP and node_id not in request.excluded_nodes and cell.shape in target.shapes
                if not usable or node_id in fabric.holder or node_id in ledger.grown.get(name, ()):
                    continue
                holds = [ledger.index.holds[h] for h in holders if h in ledger.index.holds]
                found = _fewest(node, holds, request, target.option, named)
                if found is None or (best is not None and (len(found), node_id) >= best[:2]):
                    continue
                here, stay = [c for c in claims if c.fabric == name], [h for h in holds if h.holder_id not in found]
                if _keeps_dates(ledger, request, here, cell, stay):
                    best = (len(found), node_id, found)
    return best[2] if best else None


def idle_of_own(ledger: Ledger, quotas: Quotas, request: Request, named: set[str]) -> list[str]:
    """The fewest idle holders of its own queue, those with few GPUs first, after whose end a container has its quota and a place.

    [] where there are no such. `named`: told to stop for others by this plan; those that end already count as gone.
    """
    after = quotas.copy()
    holds = [h for h in ledger.index.holds.values() if h.workspace == request.workspace and h.gpu_count and h.holder_id not in named]
    going = [h for h in holds if h.ending]
    for hold in going:
        after.give(hold)
    chosen: list[Hold] = []
    idle = [h for h in holds if h.warm and not h.ending]
    for hold in sorted(idle, key=lambda h: (len(h.node_ids) * h.gpu_count, h.since_ms, h.holder_id)):
        if after.refusal(request) is None:
            break
        after.give(hold)
        chosen.append(hold)
    if after.refusal(request) is not None:
        return []
    for hold in list(reversed(chosen)):
        after.give(hold, -1)
        if after.refusal(request) is None:
            chosen.remove(hold)
        else:
            after.give(hold)
    gone = {h.holder_id for h in (*chosen, *going)}
    return [h.holder_id for h in chosen] if _has_place(ledger, request, gone) else []


def _has_place(ledger: Ledger, request: Request, gone: set[str]) -> bool:
    """Is there a node for a container once these holders are gone? Claims are looked at when it starts."""
    index = ledger.index
    for target in ledger.view(request).targets:
        if any(target.counts.values()):
            return True
        for name in target.counts:
            fabric = index.fabrics[name]
            cleared = (n for who in gone if who in fabric.parts and who not in fabric.shares for n in index.holds[who].node_ids)
            for node_id in (*fabric.shares, *cleared):
                node = fabric.nodes.get(node_id)
                if node is None or node.state is not NodeState.UP or node_id in request.excluded_nodes:
                    continue
                stay = [index.holds[h] for h in fabric.shares.get(node_id, ()) if h not in gone]
                if fabric.cells[node_id].shape in target.shapes and fits_beside(node, stay, request, target.option):
                    return True
    return False


def _keeps_dates(ledger: Ledger, request: Request, claims: list[Claim], cell: Cell, stay: list[Hold]) -> bool:
    """The node would be busy for longer than its other holders are: may it?"""
    end_ms = ledger.now_ms + request.expected_ms
    others_ms = max((NEVER if h.ends_ms is None else h.ends_ms for h in stay), default=0)
    return all(claim.allows({cell: 1}, end_ms) for claim in claims if others_ms <= claim.start_ms < end_ms)


def _fewest(node: Node, holds: list[Hold], request: Request, option: Option, named: set[str]) -> list[str] | None:
    """Idle longest first; then each that turns out not to be needed stays."""
    idle = sorted((h for h in holds if h.warm and not h.ending and h.holder_id not in named), key=lambda h: (h.since_ms, h.holder_id))
    stay = [h for h in holds if not h.ending]
    chosen: list[Hold] = []
    for hold in idle:
        if fits_beside(node, stay, request, option):
            break
        stay.remove(hold)
        chosen.append(hold)
    if not fits_beside(node, stay, request, option):
        return None
    for hold in list(chosen):
        if fits_beside(node, [*stay, hold], request, option):
            stay.append(hold)
            chosen.remove(hold)
    return [hold.holder_id for hold in chosen]


def fits_beside(node: Node, holds: list[Hold], request: Request, option: Option) -> bool:
    """Is there room for all its containers on the node beside these holders?"""
    ask, here = request.ask, [(h, h.node_ids.count(node.node_id)) for h in holds]
    return (
        node.cpu_milli - sum(h.cpu_milli * n for h, n in here) >= ask.cpu_milli * request.size
        and node.memory_mib - sum(h.memory_mib * n for h, n in here) >= ask.memory_mib * request.size
        and node.gpu_count - sum(h.gpu_count * n for h, n in here) >= option.gpus * request.size
    )
