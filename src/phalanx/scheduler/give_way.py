"""Whose turn is over: functions with inputs without end give their nodes up, between two inputs, to who came before the next of them.

A further input is like a start: it must not move the date of a claim, unless it came before the one who has the claim. So nobody is
interrupted, nothing is lost but a warm cluster, and a date that was promised does not depend on how many inputs another function has.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.model.fleet import Hold
from phalanx.model.plan import GiveWay, Request, Snapshot, Stream
from phalanx.scheduler.index import NEVER, Cell
from phalanx.scheduler.ledger import Ledger, Target
from phalanx.scheduler.quota import Quotas
from phalanx.scheduler.reserve import Claim, back_without, blocks, excluded_on, place_of, places
from phalanx.scheduler.spare import fits_beside

_LOOKS = 8      # waiting requests a plan for whom somebody may have to give way


@dataclass(slots=True)
class _Unit:
    """What falls free together: a cluster, or a node with all who share it."""

    who: str
    fabric: str
    movers: list[tuple[Hold, Stream]]
    alone: bool         # nobody works there who has no further inputs: it falls free at the end of these

    @property
    def holders(self) -> tuple[str, ...]:
        return tuple(sorted(hold.holder_id for hold, _ in self.movers))

    @property
    def next_ms(self) -> int:
        """The age of the youngest input that would come next."""
        return max(stream.next_ms for _, stream in self.movers)


class Turns:
    """Of one plan. Reads nothing where no function has inputs that wait beside clusters that work."""

    def __init__(self, ledger: Ledger, quotas: Quotas, snapshot: Snapshot) -> None:
        self.ledger = ledger
        self.quotas = quotas
        self._snapshot = snapshot
        self._streams = {stream.function_id: stream for stream in snapshot.streams}
        self._units: list[_Unit] | None = None

    def own(self, request: Request) -> frozenset[str]:
        """What runs of its own function goes on with the very inputs that the request is for: its end is none."""
        stream = self._streams.get(request.function_id)
        return frozenset(stream.holders) if stream is not None else frozenset()

    def decide(self, waiting: list[Request], refused: set[str], claims: list[Claim]) -> tuple[GiveWay, ...]:
        """`waiting`: in order, those for whom nobody was stopped and nothing bought. `refused`: by their quotas. `claims`: of all."""
        ways: list[GiveWay] = []
        looks = _LOOKS
        mine = {claim.request_id: claim for claim in claims}
        for request in waiting:
            units = [unit for unit in self._all_units() if _may(unit, request)] if self._streams and looks else []
            if not units:
                continue
            looks -= 1
            found = self._at_once(request, units, request.request_id in refused, claims)
            if not found and request.request_id in mine:
                found = self._for_date(request, units, mine[request.request_id])
            ways += found
        return tuple(ways)

    # ------------------------------------------------------------ one is enough

    def _at_once(self, request: Request, units: list[_Unit], refused: bool, claims: list[Claim]) -> list[GiveWay]:
        """Everyone at whose end alone the request would start."""
        if not request.ask.whole and not refused:
            beside = self._beside(request, units)
            if beside:
                return beside
        end_ms = self.ledger.now_ms + request.expected_ms
        for target in self.ledger.view(request).targets:
            room = {name: self._room(request, target, name, claims, end_ms) for name in target.totals}
            roomy = any(blocks(there, target.fabric_size) >= _need(request) for there in room.values())
            if roomy and not refused:
                return []       # it waits for something else
            found = [unit for unit in units if self._starts(request, target, unit, room, refused, roomy)]
            if found:
                return [GiveWay(request.request_id, unit.holders) for unit in found]
        return []

    def _starts(
        self, request: Request, target: Target, unit: _Unit, room: dict[str, dict[str, int]], refused: bool, roomy: bool
    ) -> bool:
        """With this unit's nodes beside what is free, and its quota where that is missing?"""
        if refused:
            after = self.quotas.copy()
            for hold, _ in unit.movers:
                after.give(hold)
            if after.refusal(request) is not None:
                return False
        if roomy:
            return True
        if not unit.alone or unit.fabric not in room:
            return False
        there = dict(room[unit.fabric])
        _add(there, self._back(request, unit), target)
        return blocks(there, target.fabric_size) >= _need(request)

    def _room(self, request: Request, target: Target, name: str, claims: list[Claim], end_ms: int) -> dict[str, int]:
        """What is free there, or about to be for it, and claimed by nobody before its end."""
        there = places(self.ledger, request, target, name)
        fabric, holds = self.ledger.index.fabrics[name], self.ledger.index.holds
        for retention in self._snapshot.retentions:
            for who in retention.victims if retention.request_id == request.request_id else ():
                if who in fabric.parts and who in holds and holds[who].ending:
                    _add(there, fabric.parts[who], target)
        for claim in claims:
            if claim.fabric == name and claim.request_id != request.request_id and claim.start_ms < end_ms:
                fullest = max(there, key=lambda place: (there[place], place), default="")
                there[fullest] = there.get(fullest, 0) - claim.need
        return there

    def _beside(self, request: Request, units: list[_Unit]) -> list[GiveWay]:
        """Containers at whose end another one fits onto their node."""
        found = []
        for target in self.ledger.view(request).targets:
            for unit in units:
                fabric = self.ledger.index.fabrics[unit.fabric]
                if unit.who not in fabric.shares or unit.who in request.excluded_nodes or fabric.cells[unit.who].shape not in target.shapes:
                    continue
                holds = [self.ledger.index.holds[h] for h in fabric.shares[unit.who] if h in self.ledger.index.holds]
                for mover, _ in unit.movers:
                    stay = [h for h in holds if h.holder_id != mover.holder_id and not h.ending]
                    if fits_beside(fabric.nodes[unit.who], stay, request, target.option):
                        found.append(GiveWay(request.request_id, (mover.holder_id,)))
            if found:
                break
        return found

    # ------------------------------------------------------------ all that a date counts on

    def _for_date(self, request: Request, units: list[_Unit], claim: Claim) -> list[GiveWay]:
        """Those whose nodes the date needs, from when on their next input would not be done by then. The oldest next inputs go on."""
        ends = {who: end_ms for end_ms, who, _, _ in self.ledger.timeline(claim.fabric)}
        named: list[tuple[str, int]] = []
        for unit in sorted(units, key=lambda unit: (unit.next_ms, unit.who)):
            if unit.fabric != claim.fabric or ends.get(unit.who, NEVER) > claim.start_ms:
                continue
            back = self._back(request, unit)
            if claim.allows(back, NEVER):
                claim.book(back, NEVER)
            else:       # inputs of one function take as long as each other
                named += [(hold.holder_id, claim.start_ms - (hold.ends_ms or 0) + hold.since_ms + 1) for hold, _ in unit.movers]
        named.sort()
        return [GiveWay(request.request_id, tuple(who for who, _ in named), tuple(from_ms for _, from_ms in named))] if named else []

    # ------------------------------------------------------------

    def _all_units(self) -> list[_Unit]:
        """Read once a plan, from those that go on alone."""
        if self._units is None:
            index = self.ledger.index
            whole: list[_Unit] = []
            shared: dict[str, list[tuple[Hold, Stream]]] = {}
            for stream in self._streams.values():
                for who in stream.holders:
                    hold = index.holds.get(who)
                    here = [node_id for node_id in hold.node_ids if node_id in index.home] if hold is not None and not hold.ending else []
                    if hold is None or not here:
                        continue
                    if hold.whole:
                        whole.append(_Unit(who, index.home[here[0]], [(hold, stream)], True))
                        continue
                    for node_id in dict.fromkeys(here):
                        shared.setdefault(node_id, []).append((hold, stream))
            for node_id, movers in shared.items():
                fabric = index.fabrics[index.home[node_id]]
                others = [index.holds[h] for h in fabric.shares.get(node_id, ()) if h in index.holds]
                going = {hold.holder_id for hold, _ in movers}
                alone = all(h.holder_id in going or h.ending or h.warm for h in others)
                whole.append(_Unit(node_id, fabric.name, movers, alone))
            self._units = sorted(whole, key=lambda unit: (unit.fabric, unit.who))
        return self._units

    def _back(self, request: Request, unit: _Unit) -> dict[Cell, int]:
        """Its nodes that the request may use."""
        fabric = self.ledger.index.fabrics[unit.fabric]
        back = fabric.parts.get(unit.who, {})
        excluded = excluded_on(self.ledger, request, unit.fabric)
        return back_without(self.ledger, fabric, unit.who, back, None, excluded) if excluded else back


def _may(unit: _Unit, request: Request) -> bool:
    """Did the request come before all that would be taken next there, or has it more right to it?"""
    return all(
        stream.function_id != request.function_id
        and (request.priority > hold.priority or (request.priority == hold.priority and request.submitted_ms < stream.next_ms))
        for hold, stream in unit.movers
    )


def _need(request: Request) -> int:
    return request.size if request.ask.whole else 1


def _add(there: dict[str, int], back: dict[Cell, int], target: Target) -> None:
    for cell, count in back.items():
        if cell.shape in target.shapes:
            place = place_of(cell, target.fabric_size)
            there[place] = there.get(place, 0) + count
