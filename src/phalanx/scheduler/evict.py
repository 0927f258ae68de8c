"""Preemption as a what-if: whole victims, the cheapest work first, and only when the gang then starts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from phalanx.model.fleet import Hold
from phalanx.model.plan import Evict, Policy, Request
from phalanx.scheduler.index import Cell
from phalanx.scheduler.ledger import Ledger, Target
from phalanx.scheduler.quota import Quotas
from phalanx.scheduler.reserve import Claim, add, back_without, blocks, excluded_on, leave_out, nodes_for, places
from phalanx.scheduler.spare import idle_beside, idle_of_own

_TRIES = 6          # what-ifs a plan
_FABRICS = 6        # looked at for each, those with the fewest nodes missing first: they have the least to lose


@dataclass(slots=True)
class _Unit:
    """What falls free together: one gang, or a node with all who share it."""

    who: str
    holds: tuple[Hold, ...]
    back: dict[Cell, int]
    cost: int           # node-milliseconds of work that are lost
    priority: int       # the highest of its holders, far below all when they are idle
    ending: bool        # was told to stop already: no new victim


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
        self._levels: dict[str, dict[tuple[int, int], int]] = {}     # fabric -> (priority, shape) -> nodes
        self._failed: dict[int, list[tuple[int, int]]] = {}          # view -> (size, priority) that was looked at in vain
        self._no_idle: set[tuple[int, str, int, frozenset[str]]] = set()     # containers for which nothing idle of their queue is enough
        self._lowest: dict[str, int] | None = None       # workspace -> the lowest priority of what it holds
        self._lowest_of_all = 1 << 40
        self._own: dict[str, list[_Unit]] = {}           # workspace -> what of it could be stopped, cheapest first
        self._idle_only = self._reclaims = False         # of the request that is looked at
        self._borrowers: frozenset[str] = frozenset()    # workspaces whose holds it may stop, whatever their priority
        self._over = False                               # is it its quota that it waits for?

    def victims(self, request: Request, claims: list[Claim], idle_only: bool = False) -> tuple[list[Evict], Claim | None] | None:
        """The cheapest set of whole victims after which the request starts, with its claim on their nodes; None when no set does.

        A request that had others evicted `eviction_budget` times waits like everybody: a gang that crashes and comes back must not
        empty the fleet again and again (one caused 548 preemptions, by Meta's account of its clusters). Idle ones it gets nevertheless.
        """
        self._idle_only = idle_only or request.evictions >= self.policy.eviction_budget
        self._over = self.quotas.refusal(request) is not None
        if request.warm or self._tries <= 0 or not self._worth_a_look(request):
            return None
        if not request.ask.whole:
            if self._over:
                own = self._idle_of_own(request)
                self.named |= set(own)
                return ([Evict(name, request.request_id) for name in own], None) if own else None
            beside = idle_beside(self.ledger, request, claims, self.named)
            if beside is not None:
                self.named |= set(beside)
                return [Evict(name, request.request_id) for name in beside], None
        self._reclaims = self.quotas.may_reclaim_any(request)
        view = self.ledger.view(request)
        plain = not (self._reclaims or self._over or self._idle_only or request.excluded_nodes or request.request_id in self.ledger.kept)
        if plain and any(request.size >= size and request.priority <= priority for size, priority in self._failed.get(id(view), ())):
            return None     # less was asked with more right to it, in vain; and what could be stopped only shrinks
        self._borrowers = self.quotas.borrowers(request)
        self._tries -= 1
        best: tuple[tuple[int, int, int, str], list[_Unit], Claim] | None = None
        for target in view.targets:
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
            if plain:
                known = self._failed.get(id(view), [])
                others = [f for f in known if f[0] < request.size or f[1] > request.priority]
                self._failed[id(view)] = [*others, (request.size, request.priority)]
            return None
        _, units, claim = best
        now = self.ledger.now_ms
        out = {h.holder_id: Evict(h.holder_id, request.request_id, _lost(h, now)) for u in units if not u.ending for h in u.holds}
        if not out:
            return None       # those that are ending already are enough
        self.named |= set(out)
        claim.start_ms = self.ledger.now_ms + self.policy.grace_ms
        return [out[name] for name in sorted(out)], claim

    def _idle_of_own(self, request: Request) -> list[str]:
        """All holds are read for it, so only where there is something, and not again for what was asked in vain: less is idle later."""
        kind = id(self.ledger.view(request)), request.workspace, request.size, request.excluded_nodes
        if self._lowest_of().get(request.workspace) != IDLE or kind in self._no_idle:
            return []
        found = idle_of_own(self.ledger, self.quotas, request, self.named)
        if not found:
            self._no_idle.add(kind)
        return found

    def _worth_a_look(self, request: Request) -> bool:
        """A quick no: nothing idle, nothing of lower priority, nothing lent."""
        self._lowest_of()
        if self._idle_only:
            return self._lowest_of_all == IDLE
        return max(request.priority, IDLE + 1) > self._lowest_of_all or self.quotas.may_reclaim_any(request)

    def lower_in_own_queue(self, request: Request) -> bool:
        """Does the request's own queue hold something that works at a lower priority, or is idle?"""
        return self._lowest_of().get(request.workspace, 1 << 40) < max(request.priority, IDLE + 1)

    def _lowest_of(self) -> dict[str, int]:
        """Read once a plan."""
        if self._lowest is None:
            self._lowest = {}
            for hold in self.ledger.index.holds.values():
                if hold.preemptible_after_ms is not None:
                    level = IDLE if hold.warm else hold.priority
                    self._lowest[hold.workspace] = min(level, self._lowest.get(hold.workspace, level))
            self._lowest_of_all = min(self._lowest.values(), default=1 << 40)
        return self._lowest

    def _fabrics(self, target: Target, request: Request) -> list[str]:
        enough = (name for _, name in target.fullest() if target.totals[name] >= nodes_for(request))
        return list(islice(enough, _FABRICS))

    def _on_fabric(self, request: Request, target: Target, name: str, claims: list[Claim]) -> tuple[list[_Unit], Claim] | None:
        size = target.fabric_size
        there = places(self.ledger, request, target, name)
        need = nodes_for(request)
        excluded = excluded_on(self.ledger, request, name)
        fabric = self.ledger.index.fabrics[name]
        for claim in claims:
            if claim.fabric == name:
                leave_out(there, claim)
        if sum(there.values()) + self._could_free(name, target, request) < need:
            return None     # before anything is copied: most fabrics end here
        below = 1 << 40 if self._borrowers else request.priority - 1
        chosen: list[tuple[_Unit, dict[Cell, int]]] = []
        after = self.quotas.copy()

        def enough() -> bool:
            return blocks(there, size) >= need and after.refusal(request) is None

        def stop(entry: tuple[_Unit, dict[Cell, int]], sign: int) -> None:
            add(there, entry[1], target, sign)
            for hold in entry[0].holds:
                after.give(hold, sign)

        units = self._all_units(name)
        if self._over:
            units = sorted([*units, *self._own_beside(request, name)], key=_rank)
        for unit in units:
            if unit.priority > below and not unit.ending or enough():
                break       # they are sorted
            if self._may(unit, request):
                entry = (unit, back_without(self.ledger, fabric, unit.who, unit.back, None, excluded) if excluded else unit.back)
                stop(entry, 1)
                chosen.append(entry)
        if not enough():
            return None
        for entry in sorted(chosen, key=lambda e: (e[0].ending, -e[0].priority, -e[0].cost, e[0].who)):     # the dearest first: needed?
            stop(entry, -1)
            if enough():
                chosen.remove(entry)
            else:
                stop(entry, 1)
        return [unit for unit, _ in chosen], Claim(request.request_id, name, self.ledger.now_ms, nodes_for(request), target, there)

    def _could_free(self, name: str, target: Target, request: Request) -> int:
        """A quick bound: the nodes of everything there that the request may stop."""
        if name not in self._levels:
            levels: dict[tuple[int, int], int] = {}
            for unit in self._all_units(name):
                for cell, count in unit.back.items():
                    key = (IDLE if unit.ending else unit.priority, cell.shape)
                    levels[key] = levels.get(key, 0) + count
            self._levels[name] = levels
        below = max(request.priority, IDLE + 1) if not self._reclaims else 1 << 40
        return sum(count for (level, shape), count in self._levels[name].items() if level < below and shape in target.shapes)

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
            self._units[name] = sorted(found, key=_rank)
        return self._units[name]

    def _own_beside(self, request: Request, name: str) -> list[_Unit]:
        """What the request's queue holds beside the units of a fabric: its end gives quota back, and no node."""
        if request.workspace not in self._own:
            now, found = self.ledger.now_ms, []
            for hold in self.ledger.index.holds.values():
                may = hold.ending or (hold.preemptible_after_ms is not None and hold.preemptible_after_ms <= now)
                if hold.workspace == request.workspace and may and (hold.whole or hold.gpu_count):
                    found.append(_Unit(hold.holder_id, (hold,), {}, _lost(hold, now), IDLE if hold.warm else hold.priority, hold.ending))
            self._own[request.workspace] = found
        here = {hold.holder_id for unit in self._all_units(name) for hold in unit.holds}
        return [unit for unit in self._own[request.workspace] if unit.who not in here]

    def _may(self, unit: _Unit, request: Request) -> bool:
        if self.named and any(h.holder_id in self.named for h in unit.holds):
            return False
        if self.ledger.grown and any(unit.who in nodes for nodes in self.ledger.grown.values()):
            return False
        if unit.ending or unit.priority == IDLE:
            return True
        if not request.ask.whole or self._idle_only:
            return False       # a container of a plain function is not worth a running gang
        if unit.priority < request.priority and not (self._over and any(self.quotas.is_lender(request, h) for h in unit.holds)):
            return True
        return all(h.workspace in self._borrowers for h in unit.holds)


def _rank(unit: _Unit) -> tuple[bool, int, int, str]:
    """Cheapest first."""
    return not unit.ending, unit.priority, unit.cost, unit.who


def _lost(hold: Hold, now_ms: int) -> int:
    return 0 if hold.warm else len(hold.node_ids) * max(0, now_ms - hold.since_ms)
