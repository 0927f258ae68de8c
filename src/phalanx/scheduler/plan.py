"""The gang planner: `plan(snapshot, policy)`, pure, total, deterministic. docs/scheduling.md tells it on one page.

    1  order    priority, fair share, then wait weighted by length and size; who was promised a date goes first
    2  start    each in turn where it fits and no dated claim is moved
    3  claim    the first that does not fit is promised the earliest date; the next gets a claim without a promise elsewhere
    4  evict    what-if: whole victims of lower priority, if the gang then starts
    5  buy      what-if: whole gangs from an offer, if that is earlier than waiting
    6  turns    whose next input would be in the way of who came before it
    7  reasons  for everybody else, with numbers, from the state at the end
"""

from __future__ import annotations

from dataclasses import replace

from phalanx.model.fleet import Hold
from phalanx.model.plan import Evict, GiveWay, Plan, Policy, Request, Reservation, Snapshot, Start, Wait
from phalanx.model.reasons import Number, Reason, ReasonCode
from phalanx.scheduler.evict import Evictor
from phalanx.scheduler.fit import describe_each
from phalanx.scheduler.give_way import Turns
from phalanx.scheduler.index import NEVER, FleetIndex
from phalanx.scheduler.ledger import Ledger
from phalanx.scheduler.order import queue
from phalanx.scheduler.place import place_gang
from phalanx.scheduler.predict import remaining_ms
from phalanx.scheduler.provision import Provisioner, to_release
from phalanx.scheduler.quota import Quotas
from phalanx.scheduler.reserve import Claim, earliest
from phalanx.scheduler.shared import SharedNodes
from phalanx.scheduler.why import Reasons, never

_DEFAULT = Policy()
_RECLAIMS = 8       # looks a plan at when lent quota comes back


def plan(snapshot: Snapshot, policy: Policy = _DEFAULT, index: FleetIndex | None = None) -> Plan:
    """Decide for every pending request: start it, or say why it waits.

    `index`: the kept index of the same nodes and holds; `snapshot.nodes` and `.holds` are then not read. None builds it.
    """
    if index is None:
        index = FleetIndex.of(snapshot.nodes, snapshot.holds)
    elif policy.debug:
        index.recount()
    run = _Run(snapshot, policy, index)
    order = queue(snapshot, policy)
    for request in order:
        run.consider(request)
        if request.request_id in run.retained:
            run.ledger.lending[request.request_id] = run.date_of(request)
    return run.finish(order)


class _Run:
    """One plan in the making."""

    def __init__(self, snapshot: Snapshot, policy: Policy, index: FleetIndex) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = snapshot.now_ms
        self.ledger = Ledger(index, snapshot.now_ms, snapshot.retentions)
        self.quotas = Quotas(snapshot.quotas, index.used, index.holds.values(), (shape.gpu_type for shape in index.shapes))
        self.evictor = Evictor(self.ledger, self.quotas, policy)
        gangs = {r.request_id for r in snapshot.pending if r.ask.whole} if snapshot.retentions else set()
        cleared = frozenset(n for r in snapshot.retentions if r.request_id in gangs and r.until_ms > self.now for n in r.node_ids)
        self.shared = SharedNodes(self.ledger, self.evictor.named, cleared)
        self.turns = Turns(self.ledger, self.quotas, snapshot)
        self.provisioner = Provisioner(snapshot.offers, snapshot.arrivals)
        self.retained = {r.request_id for r in snapshot.retentions if r.until_ms > self.now}
        waiting = [r for r in snapshot.pending if r.request_id in self.retained]
        self.ledger.lending |= dict.fromkeys(self.retained - {r.request_id for r in waiting}, NEVER)
        for request in waiting:
            self.quotas.take(request)               # its nodes are kept, so is its quota
        self.claims: list[Claim] = []
        self.promised = {r.request_id for r in snapshot.reservations}
        self.dated = 0                              # claims made because nothing was free, the promise first
        self.starts: list[Start] = []
        self.evicts: list[Evict] = []
        self.reserve: list[Reservation] = []
        self.reclaims = _RECLAIMS
        self.ends: list[tuple[int, Hold]] | None = None
        self.reasons: dict[str, Reason] = {}
        self.blocked: list[Request] = []            # in order; their reasons are told at the end
        self.refused: list[Request] = []            # in order, by their quotas; narrowed as those
        self._stopping = {r.request_id for r in snapshot.retentions if r.victims}
        self._never: dict[tuple[int, int], Reason | None] = {}

    def consider(self, request: Request) -> None:
        """Start it, or find out what stops it and what can be done for it."""
        request = self.quotas.narrowed(request)
        reason = self._barred(request)
        if reason is not None:
            self.reasons[request.request_id] = reason
            return
        if self.policy.backfill == "none" and self.blocked:
            self.blocked.append(request)
            return
        if request.request_id in self.retained:
            self.quotas.untake(request)
        refusal = self.quotas.refusal(request)
        if refusal is None:
            place = place_gang(self.ledger, request, self.claims) if request.ask.whole else self.shared.place(request, self.claims)
            if place is not None:
                self.quotas.take(request, place.gpu_type, place.gpu_count)
                self.starts.append(place)
                return
        else:
            if not self._reclaim(request) and not self._free_own(request):
                self.reasons[request.request_id] = self._still_stopping(request) or refusal
                self.refused.append(request)
            return
        self.blocked.append(request)
        if _expired(request, self.now):
            return      # nobody is stopped, and nothing claimed or bought, for what is to be failed
        if request.ask.whole:
            self._provide(request)
        elif self.policy.preempt:
            self._evict(request)

    def date_of(self, request: Request) -> int:
        """The date of its claim, if it has one."""
        return next((claim.start_ms for claim in self.claims if claim.request_id == request.request_id), NEVER)

    def finish(self, order: list[Request]) -> Plan:
        """Reasons, forecasts and the plan."""
        self._second_look()
        reasons = Reasons(self.ledger, self.claims, self.blocked)
        forecasts = self.policy.forecasts
        promised = {claim.request_id: claim.start_ms for claim in self.claims}
        for request in self.blocked:
            name = request.request_id
            reason = self.reasons.get(name) or self._still_stopping(request) or reasons.why(request)
            start_ms = promised.get(name)
            if start_ms is None and forecasts > 0 and request.ask.whole and self.policy.backfill == "easy":
                forecasts -= 1
                found = earliest(self.ledger, request, self.claims)
                start_ms = found.start_ms if found is not None else None
            self.reasons[name] = replace(reason, earliest_start_ms=start_ms) if start_ms is not None else reason
        return Plan(
            version=self.snapshot.version,
            starts=tuple(self.starts),
            waits=tuple(Wait(r.request_id, self.reasons[r.request_id]) for r in order if r.request_id in self.reasons),
            reserve=tuple(self.reserve),
            evict=tuple(self.evicts),
            provision=tuple(self.provisioner.ordered),
            release=to_release(self.ledger, self.snapshot.rented, self.claims, self.policy),
            give_way=self._give_way(order),
            expired=tuple(r.request_id for r in order if _expired(r, self.now) and r.request_id in self.reasons),
            order=tuple(r.request_id for r in order),
        )

    def _give_way(self, order: list[Request]) -> tuple[GiveWay, ...]:
        """For those who wait for others' end, and for nobody who was told to end."""
        if not self.snapshot.streams:
            return ()
        served = {e.for_request for e in self.evicts} | {p.for_request for p in self.provisioner.ordered}
        place = {request.request_id: n for n, request in enumerate(order)}
        waiting = [r for r in (*self.blocked, *self.refused) if not (r.warm or r.request_id in served or _expired(r, self.now))]
        waiting.sort(key=lambda r: place[r.request_id])
        return self.turns.decide(waiting, {r.request_id for r in self.refused}, self.claims)

    def _second_look(self) -> None:
        """A container that found every empty node kept or claimed may join one that a later request has opened since."""
        looking = self.shared.opened
        while looking:
            looking = False
            for request in [r for r in self.blocked if not r.ask.whole and r.request_id not in self.reasons]:
                now = self.quotas.narrowed(request)      # a later request may have taken the quota
                place = self.shared.place(now, self.claims) if self.quotas.refusal(now) is None else None
                if place is not None:
                    self.quotas.take(now, place.gpu_type, place.gpu_count)
                    self.starts.append(place)
                    self.blocked.remove(request)
                    looking = True

    def _barred(self, request: Request) -> Reason | None:
        """What no free node would change."""
        if request.not_before_ms > self.now:
            numbers: tuple[tuple[str, Number], ...] = (("attempt", request.attempt), ("until_ms", request.not_before_ms))
            why: tuple[tuple[str, Number], ...] = (("why", request.backoff_why),) if request.backoff_why else ()
            return Reason(ReasonCode.BACKOFF, numbers + why, request.not_before_ms)
        if self.snapshot.offers and request.size % request.fabric_size == 0:
            return None
        key = (id(self.ledger.view(request)), request.size)
        if key not in self._never:
            self._never[key] = never(self.ledger, request)
        return self._never[key]

    def _provide(self, request: Request) -> None:
        """A blocked gang: a dated claim, or victims, or new nodes; whichever is earliest and allowed."""
        claim = self._claim(request)
        soon = claim is not None and claim.start_ms < self.now + self.policy.preempt_gain_ms      # idle ones are worth no wait at all
        if self.policy.preempt and self._evict(request, idle_only=soon):
            return
        if self.policy.provision and not request.warm:
            bought = self.provisioner.cover(self.ledger, request, self.claims, claim.start_ms if claim is not None else 1 << 62)
            if bought is not None:
                coming_claim, coming = bought
                self._note(request, coming_claim, dated=True)
                told = self._told(ReasonCode.PROVISIONING, request, coming=coming, ready_ms=coming_claim.start_ms)
                self.reasons[request.request_id] = told
                return
        if claim is not None:
            self._note(request, claim, dated=not self.dated or request.request_id in self.promised)
            self.dated += 1

    def _claim(self, request: Request) -> Claim | None:
        """The first blocked gang may claim anywhere, the next ones only on fabrics without a claim; warm ones never."""
        if self.policy.backfill != "easy" or request.warm:
            return None
        own = self.turns.own(request)
        if request.request_id in self.promised or not self.dated:
            return earliest(self.ledger, request, self.claims, stay=own)
        if self.dated > self.policy.soft_claims:
            return None
        avoid = frozenset(c.fabric for c in self.claims)
        return earliest(self.ledger, request, self.claims, avoid, own)

    def _evict(self, request: Request, idle_only: bool = False) -> bool:
        found = self.evictor.victims(request, self.claims, idle_only)
        if found is None:
            return False
        evicts, theirs = found
        self.evicts += evicts
        if theirs is not None:
            self._note(request, theirs, dated=True)
        if evicts:
            names = " and ".join(e.holder_id for e in evicts)
            self.reasons[request.request_id] = self._told(ReasonCode.PREEMPTING, request, victims=names)
        return True

    def _still_stopping(self, request: Request) -> Reason | None:
        """An earlier plan had others stopped for it, and they are not gone yet."""
        if request.request_id not in self._stopping:
            return None
        holds = self.ledger.index.holds
        there = [v for r in self.snapshot.retentions if r.request_id == request.request_id for v in r.victims if v in holds]
        return self._told(ReasonCode.PREEMPTING, request, victims=" and ".join(there)) if there else None

    def _reclaim(self, request: Request) -> bool:
        """Its quota is its own but lent to others: take it back, unless it comes back by itself soon. Else it waits for its quota."""
        if not self.policy.preempt or not request.ask.whole or self.reclaims <= 0 or not self.quotas.may_reclaim_any(request):
            return False
        self.reclaims -= 1
        free_ms = self.quotas.free_at(request, self._ends())
        if free_ms is not None and free_ms < self.now + self.policy.preempt_gain_ms or not self._evict(request):
            return False
        self.blocked.append(request)
        return True

    def _free_own(self, request: Request) -> bool:
        """What its own queue holds uses up its quota: idle ones are let go, and those of lower priority stopped, where it then starts."""
        if not self.policy.preempt or not self._evict(request, idle_only=not self._may_stop_own(request)):
            return False
        self.blocked.append(request)
        return True

    def _may_stop_own(self, request: Request) -> bool:
        """Does something of lower priority work in its queue, and is its quota not about to be free anyhow?"""
        if not request.ask.whole or self.reclaims <= 0 or not self.evictor.lower_in_own_queue(request):
            return False
        self.reclaims -= 1
        free_ms = self.quotas.free_at(request, self._ends())
        return free_ms is None or free_ms >= self.now + self.policy.preempt_gain_ms

    def _ends(self) -> list[tuple[int, Hold]]:
        """Everything that counts against a quota by its expected end."""
        if self.ends is None:
            holds = [h for h in self.ledger.index.all_holds() if (h.whole or h.gpu_count) and h.ends_ms is not None]
            ends = [(self.now + remaining_ms(self.now, h.since_ms, h.ends_ms or 0), h) for h in holds]
            self.ends = sorted(ends, key=lambda entry: (entry[0], entry[1].holder_id))
        return self.ends

    def _note(self, request: Request, claim: Claim, dated: bool) -> None:
        """Nobody after this may move the claim's date, by nodes or by quota. A dated one is told and goes first in the next plan."""
        self.claims.append(claim)
        self.ledger.version += 1
        self.quotas.take(request, claim.target.option.gpu_type, claim.target.option.gpus)
        if dated:
            self.reserve.append(Reservation(claim.request_id, claim.fabric, claim.start_ms, claim.need, claim.target.option.gpu_type))

    def _told(self, code: ReasonCode, request: Request, **more: Number) -> Reason:
        free = self.ledger.view(request).largest
        return Reason(code, (("need", request.size), ("free", free), ("each", describe_each(request.ask)), *sorted(more.items())))


def _expired(request: Request, now_ms: int) -> bool:
    return request.deadline_ms is not None and request.deadline_ms <= now_ms
