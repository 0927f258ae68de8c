"""Buying nodes: whole gangs only, and only what is not already on its way; and giving idle rented nodes back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.model.fleet import Arrival, Offer, Rented
from phalanx.model.plan import Policy, Provision, Request
from phalanx.scheduler.fit import fabric_of, options_of, serves
from phalanx.scheduler.ledger import Ledger, Target
from phalanx.scheduler.reserve import Claim


@dataclass(slots=True)
class _Coming:
    arrival: Arrival
    left: int       # of its nodes, those that no gang of this plan counts on yet


class Provisioner:
    """What engines offer and what was ordered, counted down while one plan is made."""

    def __init__(self, offers: Iterable[Offer], arrivals: Iterable[Arrival]) -> None:
        self._offers = sorted((o for o in offers if o.node is not None), key=lambda o: (o.boot_ms, o.offer_id))
        self._left = {o.offer_id: o.most for o in self._offers}
        self._coming = [_Coming(a, a.count) for a in sorted(arrivals, key=lambda a: (a.ready_ms, a.offer_id, a.request_id, a.count))]
        self.ordered: list[Provision] = []

    def cover(self, ledger: Ledger, request: Request, claims: list[Claim], by_ms: int) -> tuple[Claim, int] | None:
        """Nodes on their way, and new ones ordered if needed, so that the request starts before `by_ms`: its claim, and how many come.

        None: no offer makes it whole. Half a gang is never ordered: it would be paid for and wait.
        """
        best: tuple[tuple[int, int, str], Offer, int, int] | None = None
        for offer in self._offers:
            assert offer.node is not None
            if not any(serves(offer.node, request, o) for o in options_of(request.ask, {offer.node.gpu_type})):
                continue
            free = self._free(ledger, request, claims, offer)
            expected = self._for(request, offer)
            coming = sum(entry.left for entry in expected)
            missing = request.size - free - coming
            ready = ledger.now_ms + offer.boot_ms if missing > 0 else max((e.arrival.ready_ms for e in expected), default=0)
            left = self._left[offer.offer_id]
            if (missing <= 0 and not coming) or (missing > 0 and left is not None and left < missing) or ready >= by_ms:
                continue
            entry = ((max(0, missing), ready, offer.offer_id), offer, missing, ready)
            if best is None or entry[0] < best[0]:
                best = entry
        if best is None:
            return None
        _, offer, missing, ready = best
        return self._commit(ledger, request, offer, missing, ready)

    def _commit(self, ledger: Ledger, request: Request, offer: Offer, missing: int, ready: int) -> tuple[Claim, int]:
        coming = 0
        for entry in self._for(request, offer):
            coming += entry.left
            entry.left = 0
        if missing > 0:
            self.ordered.append(Provision(offer.offer_id, missing, request.request_id))
            left = self._left[offer.offer_id]
            self._left[offer.offer_id] = None if left is None else left - missing
            coming += missing
        assert offer.node is not None
        option = options_of(request.ask, {offer.node.gpu_type})[0]
        target = next(iter(ledger.view(request).targets), Target(option, frozenset(), request.fabric_size, {}, {}))
        return Claim(request.request_id, fabric_of(offer.node), ready, request.size, target, {"": request.size}), coming

    def _for(self, request: Request, offer: Offer) -> list[_Coming]:
        """Arrivals of an offer that are this request's, or anybody's."""
        wanted = (request.request_id, "")
        return [e for e in self._coming if e.left and e.arrival.offer_id == offer.offer_id and e.arrival.request_id in wanted]

    @staticmethod
    def _free(ledger: Ledger, request: Request, claims: list[Claim], offer: Offer) -> int:
        assert offer.node is not None
        name = fabric_of(offer.node)
        free = max((t.counts.get(name, 0) for t in ledger.view(request).targets), default=0)
        return max(0, free - sum(c.need for c in claims if c.fabric == name))


def to_release(ledger: Ledger, rented: Iterable[Rented], claims: Iterable[Claim], policy: Policy) -> tuple[str, ...]:
    """Rented nodes that were idle long enough and that no claim counts on. A node held for a waiting gang is busy, not idle."""
    spare: dict[str, int] = {}
    claimed: dict[str, int] = {}
    for claim in claims:
        claimed[claim.fabric] = claimed.get(claim.fabric, 0) + claim.need
    out = []
    for entry in sorted(rented, key=lambda r: (r.idle_since_ms or 0, r.node_id)):
        idle = entry.idle_since_ms is not None and ledger.now_ms - entry.idle_since_ms >= policy.keep_idle_ms
        if not idle or not ledger.is_free(entry.node_id):
            continue
        name = ledger.index.home[entry.node_id]
        if name not in spare:
            fabric = ledger.index.fabrics[name]
            spare[name] = sum(1 for n in fabric.nodes if ledger.is_free(n)) - claimed.get(name, 0)
        if spare[name] > 0:
            spare[name] -= 1
            out.append(entry.node_id)
    return tuple(sorted(out))
