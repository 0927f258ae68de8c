"""Whose turn is over: functions with inputs without end give their nodes up, between two inputs, to who came before the next of them.

A further input is like a start: it must not move the date of a claim, unless it came before the one who has the claim. So nobody is
interrupted, nothing is lost but a warm cluster, and a date that was promised does not depend on how many inputs another function has.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from phalanx.model.fleet import Hold
from phalanx.model.plan import GiveWay, Request, Snapshot, Stream
from phalanx.scheduler.index import NEVER, Cell
from phalanx.scheduler.ledger import Ledger, Target
from phalanx.scheduler.quota import Quotas
from phalanx.scheduler.reserve import Claim, add, back_without, blocks, excluded_on, leave_out, nodes_for, places
from phalanx.scheduler.spare import fits_beside

_LOOKS = 4      # waiting requests a plan for whom somebody may have to give way
_TRIES = 16     # what-ifs a plan for these
_WAYS = 16      # alternatives for each: the first to end


@dataclass(slots=True)
class _Unit:
    """What falls free together: a cluster, or a node with all who share it."""

    who: str
    fabric: str
    movers: list[tuple[Hold, Stream]]
    alone: bool         # nobody works there who has no further inputs: it falls free at the end of these
    nodes: int
    functions: frozenset[str]
    priority: int       # the highest
    next_ms: int        # the age of the oldest input that would come next
    ends_ms: int        # the last of its present inputs

    @property
    def holders(self) -> tuple[str, ...]:
        return tuple(sorted(hold.holder_id for hold, _ in self.movers))

    def may(self, request: Request) -> bool:
        """Did the request come before all that would be taken next there, or has it more right to it?"""
        if request.function_id in self.functions or request.priority < self.priority:
            return False
        return request.priority > self.priority or request.submitted_ms < self.next_ms


class Turns:
    """Of one plan. Reads nothing where no function has inputs that wait beside clusters that work."""

    def __init__(self, ledger: Ledger, quotas: Quotas, snapshot: Snapshot) -> None:
        self.ledger = ledger
        self.quotas = quotas
        self._snapshot = snapshot
        self._streams = {stream.function_id: stream for stream in snapshot.streams}
        self._units: dict[str, list[_Unit]] | None = None
        self._levels: list[tuple[int, int]] | None = None
        self._kinds: dict[int, list[tuple[int, int]]] = {}      # the same for a view's kinds of nodes
        self._vain: dict[int, list[Request]] = {}               # view -> for whom nobody could give way
        self._ended: Quotas | None = None                       # as they are without what ends
        self._all_over: Quotas | None = None                    # and with all turns over

    def own(self, request: Request) -> frozenset[str]:
        """What runs of its own function goes on with the very inputs that the request is for: its end is none."""
        stream = self._streams.get(request.function_id)
        return frozenset(stream.holders) if stream is not None else frozenset()

    def decide(self, waiting: list[Request], refused: set[str], claims: list[Claim]) -> tuple[GiveWay, ...]:
        """`waiting`: in order, those for whom nobody was stopped and nothing bought. `refused`: by their quotas. `claims`: of all."""
        ways: list[GiveWay] = []
        mine = {claim.request_id: claim for claim in claims}
        looks, tries = _LOOKS, _TRIES
        for request in waiting:
            over, claim = request.request_id in refused, mine.get(request.request_id)
            plain = not (over or claim or request.excluded_nodes or request.function_id in self._streams)
            if not self._worth_a_look(request) or not self._may_help(request, over) or plain and self._is_in_vain(request):
                continue
            found = self._at_once(request, over, claims)
            if not found and claim is not None:
                found = self._for_date(request, claim)
            if not found and plain:
                self._vain.setdefault(id(self.ledger.view(request)), []).append(request)
            ways += found
            looks, tries = looks - bool(found), tries - 1
            if not looks or not tries:
                break
        return tuple(ways)

    def _is_in_vain(self, request: Request) -> bool:
        """Was less asked with more right to it, and nobody could help?"""
        return any(
            request.size >= r.size and request.priority <= r.priority and request.submitted_ms >= r.submitted_ms
            and request.expected_ms >= r.expected_ms
            for r in self._vain.get(id(self.ledger.view(request)), ())
        )  # fmt: skip

    def _worth_a_look(self, request: Request) -> bool:
        """A quick no: everything that would come next is older, or of higher priority."""
        return _is_before_one(request, self._all_levels())

    def _may_help(self, request: Request, refused: bool) -> bool:
        """A better no, so that those who wait for something else use up no looks: with all turns over, would it have its quota; and where
        that is there, is anything to be had on its kinds of nodes?"""
        if refused:
            if self._all_over is None:
                self._all_over = self._with_what_ends().copy()
                for hold in dict.fromkeys(hold for units in self._all_units().values() for unit in units for hold, _ in unit.movers):
                    self._all_over.give(hold)
            return self._all_over.refusal(request) is None
        view = self.ledger.view(request)
        if id(view) not in self._kinds:
            names = dict.fromkeys(name for target in view.targets for name in target.totals)
            youngest: dict[int, int] = {}
            for unit in (u for name in names for u in self._all_units().get(name, ())):
                youngest[unit.priority] = max(youngest.get(unit.priority, unit.next_ms), unit.next_ms)
            self._kinds[id(view)] = sorted(youngest.items())
        return _is_before_one(request, self._kinds[id(view)])

    # ------------------------------------------------------------ one is enough

    def _at_once(self, request: Request, refused: bool, claims: list[Claim]) -> list[GiveWay]:
        """Those at whose end alone the request would start, the first to end first."""
        if not request.ask.whole and not refused:
            beside = self._beside(request)
            if beside is not None:
                return beside
        end_ms = self.ledger.now_ms + request.expected_ms
        quotas = self._with_what_ends() if refused else None
        for target in self.ledger.view(request).targets:
            room = {name: self._room(request, target, name, claims, end_ms) for name in target.totals}
            have = {name: blocks(there, target.fabric_size) for name, there in room.items()}
            roomy = any(count >= nodes_for(request) for count in have.values())
            if roomy and (quotas is None or quotas.refusal(request) is None):
                return []       # it waits for something else
            found: list[_Unit] = []
            for name, units in self._all_units().items():
                missing = nodes_for(request) - have.get(name, 0)
                fits = (u for u in units if (roomy or u.nodes >= missing) and u.may(request))
                found += islice((u for u in fits if self._starts(request, target, u, room, quotas, roomy)), _WAYS)
            if found:
                found.sort(key=lambda unit: (unit.ends_ms, unit.who))
                return [GiveWay(request.request_id, unit.holders) for unit in found[:_WAYS]]
        return []

    def _with_what_ends(self) -> Quotas:
        """Quotas without what was told to end: maybe for this very request."""
        if self._ended is None:
            self._ended = self.quotas.copy()
            for hold in self.ledger.index.holds.values():
                if hold.ending:
                    self._ended.give(hold)
        return self._ended

    def _starts(
        self, request: Request, target: Target, unit: _Unit, room: dict[str, dict[str, int]], quotas: Quotas | None, roomy: bool
    ) -> bool:
        """With this unit's nodes beside what is free, and its quota where that is missing? `quotas`: where it is."""
        if quotas is not None:
            after = quotas.copy()
            for hold, _ in unit.movers:
                after.give(hold)
            if after.refusal(request) is not None:
                return False
        if roomy:
            return True
        if not unit.alone or unit.fabric not in room:
            return False
        there = dict(room[unit.fabric])
        add(there, self._back(request, unit), target)
        return blocks(there, target.fabric_size) >= nodes_for(request)

    def _room(self, request: Request, target: Target, name: str, claims: list[Claim], end_ms: int) -> dict[str, int]:
        """What is free there, or about to be for it, and claimed by nobody before its end."""
        there = places(self.ledger, request, target, name)
        fabric, holds = self.ledger.index.fabrics[name], self.ledger.index.holds
        for retention in self._snapshot.retentions:
            for who in retention.victims if retention.request_id == request.request_id else ():
                if who in fabric.parts and who in holds and holds[who].ending:
                    add(there, fabric.parts[who], target)
        for claim in claims:
            if claim.fabric == name and claim.request_id != request.request_id and claim.start_ms < end_ms:
                leave_out(there, claim)
        return there

    def _beside(self, request: Request) -> list[GiveWay] | None:
        """Containers at whose end another one fits onto their node; [] where the end of what ends there already is enough. None: none."""
        found: list[GiveWay] = []
        for target in self.ledger.view(request).targets:
            for unit in (u for name in target.totals for u in self._all_units().get(name, ()) if u.may(request)):
                if len(found) >= _WAYS:
                    return found
                fabric = self.ledger.index.fabrics[unit.fabric]
                if unit.who not in fabric.shares or unit.who in request.excluded_nodes or fabric.cells[unit.who].shape not in target.shapes:
                    continue
                holds = [self.ledger.index.holds[h] for h in fabric.shares[unit.who] if h in self.ledger.index.holds]
                left = [h for h in holds if not h.ending]
                if len(left) < len(holds) and fits_beside(fabric.nodes[unit.who], left, request, target.option):
                    return []
                for mover, _ in unit.movers:
                    stay = [h for h in left if h.holder_id != mover.holder_id]
                    if fits_beside(fabric.nodes[unit.who], stay, request, target.option):
                        found.append(GiveWay(request.request_id, (mover.holder_id,)))
            if found:
                break
        return found or None

    # ------------------------------------------------------------ all that a date counts on

    def _for_date(self, request: Request, claim: Claim) -> list[GiveWay]:
        """Those whose nodes the date needs, from when on their next input would not be done by then. The oldest next inputs go on."""
        ends = {who: end_ms for end_ms, who, _, _ in self.ledger.timeline(claim.fabric)}
        named: list[tuple[str, int]] = []
        units = [unit for unit in self._all_units().get(claim.fabric, ()) if unit.may(request)]
        for unit in sorted(units, key=lambda unit: (unit.next_ms, unit.who)):
            if ends.get(unit.who, NEVER) > claim.start_ms:
                continue
            back = self._back(request, unit)
            if claim.allows(back, NEVER):
                claim.book(back, NEVER)
            else:       # inputs of one function take as long as each other
                named += [(hold.holder_id, claim.start_ms - (hold.ends_ms or 0) + hold.since_ms + 1) for hold, _ in unit.movers]
        named.sort()
        return [GiveWay(request.request_id, tuple(who for who, _ in named), tuple(from_ms for _, from_ms in named))] if named else []

    # ------------------------------------------------------------

    def _all_levels(self) -> list[tuple[int, int]]:
        """For each priority the youngest next input. All that runs of a function has one priority."""
        if self._levels is None:
            youngest: dict[int, int] = {}
            for stream in self._streams.values():
                hold = self.ledger.index.holds.get(stream.holders[0])
                if hold is not None:
                    youngest[hold.priority] = max(youngest.get(hold.priority, stream.next_ms), stream.next_ms)
            self._levels = sorted(youngest.items())
        return self._levels

    def _all_units(self) -> dict[str, list[_Unit]]:
        """By fabric, the first to end first. Read once a plan, from what goes on alone."""
        if self._units is None:
            index = self.ledger.index
            home, holds = index.home, index.holds
            found: dict[str, list[_Unit]] = {}
            shared: dict[str, list[tuple[Hold, Stream]]] = {}
            for stream in self._streams.values():
                function = frozenset((stream.function_id,))
                for who in stream.holders:
                    hold = holds.get(who)
                    if hold is None or hold.ending:
                        continue
                    if not hold.whole:
                        for node_id in dict.fromkeys(hold.node_ids):
                            if node_id in home:
                                shared.setdefault(node_id, []).append((hold, stream))
                        continue
                    name = next((home[node_id] for node_id in hold.node_ids if node_id in home), None)
                    if name is not None:
                        ends_ms = NEVER if hold.ends_ms is None else hold.ends_ms
                        found.setdefault(name, []).append(_Unit(
                            who, name, [(hold, stream)], True, len(hold.node_ids), function, hold.priority, stream.next_ms, ends_ms
                        ))  # fmt: skip
            for node_id, movers in shared.items():
                fabric = index.fabrics[index.home[node_id]]
                others = [index.holds[h] for h in fabric.shares.get(node_id, ()) if h in index.holds]
                going = {hold.holder_id for hold, _ in movers}
                alone = all(h.holder_id in going or h.ending or h.warm for h in others)
                found.setdefault(fabric.name, []).append(_shared(node_id, fabric.name, movers, alone))
            for units in found.values():
                units.sort(key=lambda unit: (unit.ends_ms, unit.who))
            self._units = {name: found[name] for name in sorted(found)}
        return self._units

    def _back(self, request: Request, unit: _Unit) -> dict[Cell, int]:
        """Its nodes that the request may use."""
        fabric = self.ledger.index.fabrics[unit.fabric]
        back = fabric.parts.get(unit.who, {})
        return back_without(self.ledger, fabric, unit.who, back, None, excluded_on(self.ledger, request, unit.fabric))


def _shared(who: str, fabric: str, movers: list[tuple[Hold, Stream]], alone: bool) -> _Unit:
    functions = frozenset(stream.function_id for _, stream in movers)
    ends_ms = max(NEVER if hold.ends_ms is None else hold.ends_ms for hold, _ in movers)
    priority, next_ms = max(hold.priority for hold, _ in movers), min(stream.next_ms for _, stream in movers)
    return _Unit(who, fabric, movers, alone, 1, functions, priority, next_ms, ends_ms)


def _is_before_one(request: Request, levels: list[tuple[int, int]]) -> bool:
    """`levels`: (priority, youngest next input)."""
    mine, came = request.priority, request.submitted_ms
    return any(mine > level or (mine == level and came < youngest) for level, youngest in levels)
