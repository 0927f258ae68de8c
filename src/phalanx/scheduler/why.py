"""Why a request waits, told from the state at the end of the plan: one dominant code, the numbers, and what would start it now."""

from __future__ import annotations

from itertools import chain

from phalanx.model.plan import Request
from phalanx.model.reasons import Number, Reason, ReasonCode, Wish, WishKind
from phalanx.scheduler.fit import can_ever_fit, describe_each
from phalanx.scheduler.index import Fabric
from phalanx.scheduler.ledger import Ledger, Target
from phalanx.scheduler.reserve import Claim

_NAMES = 9      # beyond so many holders their number says nothing to a person
Numbers = list[tuple[str, Number]]


class Reasons:
    """Remembers what requests of one kind and size have in common: a thousand waiting gangs are a few kinds."""

    def __init__(self, ledger: Ledger, claims: list[Claim], blocked: list[Request]) -> None:
        self.ledger = ledger
        self.claims = claims
        self.blocked = blocked
        self._owners = {claim.request_id for claim in claims}
        self._known: dict[tuple[int, int], Reason] = {}
        self._plains: dict[int, dict[str, int]] = {}
        self._aways: dict[int, dict[str, dict[str, int]]] = {}
        self._totals: dict[int, tuple[int, int]] = {}

    def why(self, request: Request) -> Reason:
        """The dominant reason for a request that the fleet could run and that has not started."""
        if request.excluded_nodes or request.request_id in self.ledger.kept or request.request_id in self._owners:
            return self._explain(request)
        key = (id(self.ledger.view(request)), request.size)
        if key not in self._known:
            self._known[key] = self._explain(request)
        return self._known[key]

    def _explain(self, request: Request) -> Reason:
        view = self.ledger.view(request)
        special = bool(request.excluded_nodes) or request.request_id in self.ledger.kept
        best: tuple[int, str, Target] | None = None
        for target in view.targets:
            for count, name in target.fullest():
                free = self._usable(request, target, name, count) if special else count
                if best is None or free > best[0] or (free == best[0] and target.shapes > best[2].shapes):
                    best = (free, name, target)
                if not special:
                    break
        if best is None:
            return Reason(ReasonCode.NO_CAPACITY, tuple(self._ask(request, 0)), None, Wish(WishKind.NODES_ADDED, request.size))
        free, name, target = best
        return self._dominant(request, target, name, free)

    def _dominant(self, request: Request, target: Target, name: str, free: int) -> Reason:
        network = name.rsplit("/", 1)[-1]
        more = Wish(WishKind.NODES_ADDED, request.size - free, network)
        plain = self._plain(target)
        excluded = sum(1 for n in request.excluded_nodes if self.ledger.is_free(n))
        if not request.ask.whole:
            return self._no_room(request, target, name)
        if free >= request.size:
            return self._claimed(request, name, free)
        if request.fabric_size > 1 and plain[name] >= request.size:
            extra: Numbers = [("fabric_size", request.fabric_size), ("best", free), ("network", network)]
            return Reason(ReasonCode.DOMAIN, (*self._ask(request, plain[name]), *extra), None, Wish(WishKind.FABRIC_SIZE, 1))
        kept = self._kept_from(request)
        kept_here = sorted({owner for owner, n in kept if self.ledger.index.home[n] == name})
        count_here = sum(1 for _, n in kept if self.ledger.index.home[n] == name)
        if count_here and free + count_here >= request.size:
            extra = [("retained", count_here), ("for", " and ".join(kept_here)), ("network", network)]
            return Reason(ReasonCode.RETAINED, (*self._ask(request, free), *extra), None, Wish(WishKind.RESERVATION_GONE, 0, kept_here[0]))
        draining = self._draining(request, target) if self._away_of(target) else None
        if draining is not None:
            return draining
        if sum(plain.values()) - excluded >= request.size and len(plain) > 1:
            extra = [("largest", free), ("network", network)]
            return Reason(ReasonCode.FRAGMENTED, (*self._ask(request, sum(plain.values())), *extra), None, more)
        return self._held(request, target, name, free, more)

    def _held(self, request: Request, target: Target, name: str, free: int, more: Wish) -> Reason:
        free_in_all = sum(self._plain(target).values())
        numbers = self._ask(request, free_in_all)
        fabrics = [self.ledger.index.fabrics[n] for n in sorted(target.counts)]
        total, shared = self._sizes(target, fabrics)
        away: dict[str, int] = {}
        for states in self._away_of(target).values():
            for state, count in states.items():
                away[state] = away.get(state, 0) + count
        excluded = sum(1 for n in request.excluded_nodes if self.ledger.is_free(n))
        kept = len(self._kept_from(request))
        held = total - free_in_all - sum(away.values()) - shared - kept
        holders, wish = self._holders(target, name, fabrics, request.size - free)
        for label, count in (("held", held), ("shared", shared), ("retained", kept), ("excluded", excluded), *sorted(away.items())):
            if count > 0:
                numbers.append((label, count))
        if holders:
            numbers.append(("held_by", holders))
        causes = sorted({why for f in fabrics if f.causes for n, why in f.causes.items() if f.cells[n].shape in target.shapes})
        numbers += [(f"{state}_why", ", ".join(causes)) for state in sorted(away) if causes]
        return Reason(ReasonCode.NO_CAPACITY, tuple(numbers), None, wish or more)

    def _holders(self, target: Target, first: str, fabrics: list[Fabric], missing: int) -> tuple[str, Wish | None]:
        """Who holds nodes, on the first fabric before the others, the first to end first; and the one there whose end would be enough."""
        names: list[str] = []
        wish = None
        for fabric in chain((f for f in fabrics if f.name == first), (f for f in fabrics if f.name != first)):
            for _, who in fabric.releases:
                back = sum(n for cell, n in fabric.parts[who].items() if cell.shape in target.shapes)
                if not back or who in fabric.shares:
                    continue
                names.append(who)
                if fabric.name == first and back >= missing and wish is None:
                    wish = Wish(WishKind.HOLD_ENDED, back, who)
            names += self.ledger.starters.get(fabric.name, ())
            if len(names) > _NAMES:
                break
        if not names:
            return "", wish
        more = "" if len(names) <= 2 else f" and {len(names) - 2} more" if len(names) <= _NAMES else " and others"
        return " and ".join(names[:2]) + more, wish

    def _claimed(self, request: Request, name: str, free: int) -> Reason:
        claims = [c for c in self.claims if c.fabric == name and c.request_id != request.request_id]
        numbers: Numbers = [*self._ask(request, free), ("network", name.rsplit("/", 1)[-1])]
        if not claims:      # strict order: whoever waits first keeps everything free
            first = self.blocked[0].request_id if self.blocked else ""
            return Reason(ReasonCode.RESERVED, (*numbers, ("for", first)), None, Wish(WishKind.RESERVATION_GONE, 0, first))
        claim = claims[0]
        numbers += [("for", claim.request_id), ("until_ms", claim.start_ms)]
        return Reason(ReasonCode.RESERVED, tuple(numbers), None, Wish(WishKind.RESERVATION_GONE, 0, claim.request_id))

    def _kept_from(self, request: Request) -> list[tuple[str, str]]:
        """(owner, node) of free nodes that are kept for others."""
        kept, given = self.ledger.kept, self.ledger.given
        return [(owner, n) for owner, ids in sorted(kept.items()) if owner != request.request_id for n in ids if n not in given]

    def _draining(self, request: Request, target: Target) -> Reason | None:
        """Some fabric would have room if its nodes were all in service."""
        best: tuple[int, str, int, dict[str, int]] | None = None
        for name, away in self._away_of(target).items():
            free = self._usable(request, target, name, target.counts[name])
            if free + sum(away.values()) >= request.size:
                entry = (-free, name, free, away)
                if best is None or entry[:2] < best[:2]:
                    best = entry
        if best is None:
            return None
        _, name, free, away = best
        fabric = self.ledger.index.fabrics[name]
        numbers: Numbers = [*self._ask(request, free), ("network", name.rsplit("/", 1)[-1])]
        for state, count in sorted(away.items()):
            numbers.append((state, count))
            nodes = [n for n in fabric.causes if fabric.nodes[n].state.value == state and fabric.cells[n].shape in target.shapes]
            if nodes:
                numbers.append((f"{state}_why", ", ".join(sorted({fabric.causes[n] for n in nodes}))))
        wish = Wish(WishKind.NODES_BACK, request.size - free, name.rsplit("/", 1)[-1])
        return Reason(ReasonCode.DRAINING, tuple(numbers), None, wish)

    def _no_room(self, request: Request, target: Target, name: str) -> Reason:
        """A shared ask: no node has room for another container."""
        numbers: Numbers = [("containers", request.size), *self._ask(request, 0)]
        fabrics = [self.ledger.index.fabrics[n] for n in sorted(target.counts)]
        shared = sum(1 for f in fabrics for n in f.shares if f.cells[n].shape in target.shapes)
        held = sum(1 for f in fabrics for n in f.holder if f.cells[n].shape in target.shapes)
        held += sum(len(self.ledger.taken.get(f.name, ())) for f in fabrics)
        away: dict[str, int] = {}
        for fabric in fabrics:
            for state, count in _away(fabric, target).items():
                away[state] = away.get(state, 0) + count
        for label, count in (("shared", shared), ("held", held), *sorted(away.items())):
            if count:
                numbers.append((label, count))
        free = max(target.counts.values(), default=0)
        if free and self.claims:
            return self._claimed(request, name, free)
        return Reason(ReasonCode.NO_CAPACITY, tuple(numbers), None, Wish(WishKind.NODES_ADDED, 1, name.rsplit("/", 1)[-1]))

    def _ask(self, request: Request, free: int) -> Numbers:
        return [("need", request.size), ("free", free), ("each", describe_each(request.ask))]

    def _usable(self, request: Request, target: Target, name: str, count: int) -> int:
        home = self.ledger.index.home
        mine = sum(1 for n in self.ledger.kept.get(request.request_id, ()) if home[n] == name)
        return count + mine - sum(1 for n in request.excluded_nodes if home.get(n) == name and self.ledger.is_free(n))

    def _plain(self, target: Target) -> dict[str, int]:
        """Free nodes by fabric, without regard to blocks."""
        if target.fabric_size <= 1:
            return target.counts
        if id(target) not in self._plains:
            self._plains[id(target)] = {name: self.ledger.count(name, target.shapes, 1) for name in target.counts}
        return self._plains[id(target)]

    def _away_of(self, target: Target) -> dict[str, dict[str, int]]:
        """Nodes out of service, by fabric and state; only fabrics that have some."""
        if id(target) not in self._aways:
            fabrics = self.ledger.index.fabrics
            found = {name: _away(fabrics[name], target) for name in sorted(target.counts) if fabrics[name].away}
            self._aways[id(target)] = {name: states for name, states in found.items() if states}
        return self._aways[id(target)]

    def _sizes(self, target: Target, fabrics: list[Fabric]) -> tuple[int, int]:
        """Nodes of the shapes, and those of them that are shared."""
        if id(target) not in self._totals:
            total = sum(f.sizes.get(shape, 0) for f in fabrics for shape in target.shapes)
            shared = sum(1 for f in fabrics if f.shares for n in f.shares if f.cells[n].shape in target.shapes and n not in f.causes)
            self._totals[id(target)] = (total, shared)
        return self._totals[id(target)]


def never(ledger: Ledger, request: Request) -> Reason | None:
    """The refusal when no fabric could hold it even when empty. Reads totals; the nodes only when it comes to the sentence."""
    totals = [total for target in ledger.view(request).targets for total in target.totals.values()]
    enough = request.size if request.ask.whole else 1
    if max(totals, default=0) >= enough and request.size % request.fabric_size == 0:
        return None
    return can_ever_fit(request, ledger.index.all_nodes())


def _away(fabric: Fabric, target: Target) -> dict[str, int]:
    """Nodes out of service by state. One that still carries a gang counts: it will not come back by the gang's end."""
    found: dict[str, int] = {}
    for cell, states in fabric.away.items():
        if cell.shape in target.shapes:
            for state, count in states.items():
                found[state] = found.get(state, 0) + count
    return found
