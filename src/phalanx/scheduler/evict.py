"""Preemption as a what-if: whole victims, the cheapest work first, and only when the gang then starts."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.model.fleet import Hold
from phalanx.model.plan import Evict, Policy, Request
from phalanx.scheduler.index import Cell
from phalanx.scheduler.ledger import Ledger, Target
from phalanx.scheduler.quota import Quotas
from phalanx.scheduler.reserve import Claim, blocks, place_of, places

_TRIES = 8          # what-ifs a plan
_FABRICS = 8        # looked at for each, those with the fewest nodes missing first: they have the least to lose


@dataclass(slots=True)
class _Unit:
    """What falls free together: one gang, or a node with all who share it."""

    who: str
    holds: tuple[Hold, ...]
    back: dict[Cell, int]
    cost: int           # node-milliseconds of work that are lost
    priority: int       # the highest of its holders, far below all when they are idle
    ending: bool        # was told to stop already: no new victim

    @property
    def rank(self) -> tuple[bool, int, int, str]:
        """Cheapest first."""
        return not self.ending, self.priority, self.cost, self.who


IDLE = -(1 << 40)       # the priority of a warm gang that nobody uses: any call may have its nodes


class Evictor:
    """The victims of one plan."""

    def __init__(self, ledger: Ledger, quotas: Quotas, policy: Policy) -> None:
        self.ledger = ledger
        self.quotas = quotas
        self.policy = policy
        self.named: set[str] = set()                     # who was told to stop by this plan
        self._tries = _TRIES
        self._units: dict[str, list[_Unit]] = {}         # fabric -> what could be stopped there at all, cheapest first
        self._lowest: int | None = None

    def victims(self, request: Request, claims: list[Claim]) -> tuple[list[Evict], Claim] | None:
        """The cheapest set of whole victims after which the request starts, with its claim on their nodes; None when no set does.

        A request that had others evicted `eviction_budget` times waits like everybody: a gang that crashes and comes back must not
        empty the fleet again and again (one caused 548 preemptions, by Meta's account of its clusters).
        """
        if request.warm or request.evictions >= self.policy.eviction_budget or self._tries <= 0 or not self._worth_a_look(request):
            return None
        self._tries -= 1
        best: tuple[tuple[int, int, int, str], list[_Unit], Claim] | None = None
        for target in self.ledger.view(request).targets:
            for name in self._fabrics(target, request):
                found = self._on_fabric(request, target, name, claims)
                if found is None:
                    continue
                units, claim = found
                new = [u for u in units if not u.ending]
                rank = (max((u.priority for u in new), default=IDLE), sum(u.cost for u in new), len(new), name)
                if best is None or rank < best[0]:
                    best = (rank, units, claim)
        if best is None:
            return None
        _, units, claim = best
        now = self.ledger.now_ms
        out = {h.holder_id: Evict(h.holder_id, request.request_id, _lost(h, now)) for u in units if not u.ending for h in u.holds}
        if not out:
            return None       # those that are ending already are enough
        self.named |= set(out)
        claim.start_ms = self.ledger.now_ms + self.policy.grace_ms
        return [out[name] for name in sorted(out)], claim

    def _worth_a_look(self, request: Request) -> bool:
        """A quick no: nothing idle, nothing of lower priority, nothing lent."""
        if self._lowest is None:
            holds = self.ledger.index.holds.values()
            self._lowest = min((IDLE if h.warm else h.priority for h in holds if h.preemptible_after_ms is not None), default=1 << 40)
        return request.priority > self._lowest or self.quotas.lends

    def _fabrics(self, target: Target, request: Request) -> list[str]:
        return [name for _, name in target.fullest() if target.totals[name] >= request.size][:_FABRICS]

    def _on_fabric(self, request: Request, target: Target, name: str, claims: list[Claim]) -> tuple[list[_Unit], Claim] | None:
        size = target.fabric_size
        there = places(self.ledger, target, name)
        need = request.size + sum(1 for n in request.excluded_nodes if self.ledger.index.home.get(n) == name)
        for claim in claims:
            if claim.fabric == name:
                fullest = max(there, key=lambda place: (there[place], place), default="")
                there[fullest] = there.get(fullest, 0) - claim.need
        chosen: list[_Unit] = []
        for unit in self._all_units(name):
            if blocks(there, size) >= need:
                break
            if self._may(unit, request) and any(cell.shape in target.shapes for cell in unit.back):
                _add(there, unit.back, target, 1)
                chosen.append(unit)
        if blocks(there, size) < need:
            return None
        for unit in sorted(chosen, key=lambda u: (u.ending, -u.priority, -u.cost, u.who)):     # the dearest first: is it needed at all?
            _add(there, unit.back, target, -1)
            if blocks(there, size) >= need:
                chosen.remove(unit)
            else:
                _add(there, unit.back, target, 1)
        after = self.quotas.copy()
        for unit in chosen:
            for hold in unit.holds:
                after.give(hold)
        if after.refusal(request) is not None:
            return None
        return chosen, Claim(request.request_id, name, self.ledger.now_ms, request.size, target, there)

    def _all_units(self, name: str) -> list[_Unit]:
        """What sits on a fabric and may be stopped, whoever asks. Read once a plan."""
        if name not in self._units:
            now = self.ledger.now_ms
            fabric, holds_of = self.ledger.index.fabrics[name], self.ledger.index.holds
            found = []
            for who, back in fabric.parts.items():
                holds = tuple(holds_of[n] for n in fabric.shares.get(who, (who,)) if n in holds_of)
                live = tuple(h for h in holds if not h.ending)
                if holds and all(h.preemptible_after_ms is not None and h.preemptible_after_ms <= now for h in live):
                    priority = max((IDLE if h.warm else h.priority for h in live), default=IDLE)
                    found.append(_Unit(who, live or holds, back, sum(_lost(h, now) for h in live), priority, not live))
            self._units[name] = sorted(found, key=lambda u: u.rank)
        return self._units[name]

    def _may(self, unit: _Unit, request: Request) -> bool:
        if any(h.holder_id in self.named for h in unit.holds):
            return False
        return unit.ending or unit.priority < request.priority or all(h.warm or self.quotas.may_reclaim(request, h) for h in unit.holds)


def _lost(hold: Hold, now_ms: int) -> int:
    return 0 if hold.warm else len(hold.node_ids) * max(0, now_ms - hold.since_ms)


def _add(there: dict[str, int], back: dict[Cell, int], target: Target, sign: int) -> None:
    for cell, count in back.items():
        if cell.shape in target.shapes:
            place = place_of(cell, target.fabric_size)
            there[place] = there.get(place, 0) + sign * count
