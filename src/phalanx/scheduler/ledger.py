"""What is still free while one plan is made: the index, minus what this plan has taken, kept or claimed so far."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from phalanx.model.fleet import NodeState, Retention
from phalanx.model.plan import Ask, Request
from phalanx.scheduler.choose import choose, whole_blocks
from phalanx.scheduler.fit import NO_GPU, Option, blocks_in, options_of, serves
from phalanx.scheduler.index import NEVER, Cell, Domain, Fabric, FleetIndex, Kind
from phalanx.scheduler.predict import remaining_ms
from phalanx.scheduler.reach import Reach, reach_of

# (when, who ends, what comes back by cell, and by node id where this plan started it)
Timeline = list[tuple[int, str, dict[Cell, int], tuple[str, ...] | None]]


@dataclass(slots=True)
class Target:
    """One way to serve a kind of request: an option, the shapes that give it, and what each fabric has of them."""

    option: Option
    shapes: frozenset[int]
    fabric_size: int
    counts: dict[str, int]                 # fabric -> free nodes (in whole blocks)
    totals: dict[str, int]                 # fabric -> all nodes (in whole blocks), down and held ones too
    ranked: list[tuple[int, str]] = field(default_factory=list)     # counts, sorted; `lower` keeps it so

    def fitting(self, size: int) -> list[tuple[int, str]]:
        """Fabrics with at least `size` free, tightest first."""
        return self.ranked[bisect_left(self.ranked, (size, "")) :]

    def fullest(self) -> Iterator[tuple[int, str]]:
        """All fabrics that have the shapes, most free first."""
        return reversed(self.ranked)

    def lower(self, name: str, count: int) -> None:
        """So many are free there now."""
        del self.ranked[bisect_left(self.ranked, (self.counts[name], name))]
        insort(self.ranked, (count, name))
        self.counts[name] = count


@dataclass(slots=True)
class View:
    """How requests of one kind see the fleet. Requests that differ only in size, age and owner share it."""

    targets: tuple[Target, ...]
    fabric_size: int
    largest: int = 0                       # the most free nodes on one fabric: a quick no
    refused: list[tuple[int, int, int]] = field(default_factory=list)   # (size, end, ledger version) that found no place

    def refuse(self, size: int, end_ms: int, version: int) -> None:
        """Remember it, in place of those that it includes: a thousand gangs that wait each read this list."""
        if version < 0:
            self.refused = [r for r in self.refused if r[2] >= 0 or r[0] < size or r[1] < end_ms]
        self.refused.append((size, end_ms, version))

    def refresh(self) -> None:
        self.largest = max((target.ranked[-1][0] for target in self.targets if target.ranked), default=0)

    def known_refusal(self, size: int, end_ms: int, version: int) -> bool:
        """Nothing that asks as much for as long can find a place either. Version -1: whatever the plan did since."""
        return any(end_ms >= end and (size >= least if at < 0 else (size, version) == (least, at)) for least, end, at in self.refused)


@dataclass(slots=True)
class Choice:
    """The nodes that a gang of one kind and size would get on a fabric; () when it does not fit."""

    nodes: tuple[str, ...]
    cells: dict[Cell, int]
    refused_ms: int = NEVER                # whoever runs until then or longer would move a claim


class Ledger:
    """Mutable, and lives for one plan. Node ids leave it by `take`; nothing comes back."""

    def __init__(self, index: FleetIndex, now_ms: int, retentions: Iterable[Retention] = ()) -> None:
        self.index = index
        self.now_ms = now_ms
        self.used = dict(index.used)
        self.taken: dict[str, set[str]] = {}                            # fabric -> node ids
        self.added: dict[str, list[tuple[int, dict[Cell, int], tuple[str, ...]]]] = {}   # fabric -> what its starts give back when
        self.kept: dict[str, list[str]] = {}                            # request -> free nodes that are kept for it
        self.kept_until: dict[str, int] = {}                            # node id -> when it is anybody's again
        self.lending: dict[str, int] = {}                               # who had its turn lends its kept nodes -> until when
        self.given: set[str] = set()                                    # kept nodes that this plan has used
        self.grown: dict[str, dict[str, int]] = {}                      # fabric -> shared node this plan put more on -> its new end
        self.starters: dict[str, list[str]] = {}                        # fabric -> requests this plan has started there
        self.version = 0                                                # counts what was taken and claimed
        self._left: dict[str, dict[tuple[int, Domain], list[str]]] = {}   # fabric -> cell -> its free ids less those taken, where asked for
        self._fewer: dict[str, dict[int, int]] = {}                     # fabric -> shape -> how many of its free nodes are taken
        self._choices: dict[str, dict[tuple[frozenset[int], int, int], Choice]] = {}
        self._places: dict[str, dict[frozenset[int], dict[str, int]]] = {}
        self._reaches: dict[frozenset[int], list[Reach]] = {}
        self._timelines: dict[str, Timeline] = {}
        self._kept_longest = -1
        self._views: dict[object, View] = {}
        self._view_of: dict[str, tuple[Ask, View]] = {}                 # by request, and what it asked: a quota may narrow it
        for retention in sorted(retentions, key=lambda r: (r.request_id, r.until_ms)):
            if retention.until_ms > now_ms:
                self._keep(retention)

    def view(self, request: Request) -> View:
        """The request's view of the fleet, made once per kind and plan and kept current by `take`."""
        known = self._view_of.get(request.request_id)
        if known is not None and known[0] is request.ask:
            return known[1]
        key = (request.ask, request.where, request.rdma, request.fabric_size)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = self._look(request)
        self._view_of[request.request_id] = request.ask, found
        return found

    def free(self, name: str, shapes: frozenset[int]) -> dict[Domain, list[str]]:
        """The free node ids of a fabric by domain, sorted."""
        fabric = self.index.fabrics[name]
        gone = self.taken.get(name)
        own = self._left.setdefault(name, {})
        found: dict[Domain, list[str]] = {}
        for shape in shapes:
            for domain, ids in fabric.free.get(shape, {}).items():
                left = ids
                if gone:
                    cell = (shape, domain)
                    if cell not in own:
                        own[cell] = [i for i in ids if i not in gone]     # once; `take` keeps it
                    left = own[cell]
                if left:
                    found[domain] = sorted(found[domain] + left) if domain in found else left
        return found

    def choice(self, name: str, target: Target, size: int) -> Choice:
        """Made once per kind and size, until something is taken there."""
        known = self._choices.get(name)
        if known is None:
            known = self._choices[name] = {}
        key = (target.shapes, size, target.fabric_size)
        found = known.get(key)
        if found is None:
            nodes = choose(self.free(name, target.shapes), size, target.fabric_size)
            found = known[key] = Choice(nodes, self.cells_of(name, nodes))
        return found

    def places(self, name: str, target: Target) -> dict[str, int]:
        """Free nodes of a fabric by place: NVLink domains when blocks are wanted, else the whole. The caller's to change."""
        if target.fabric_size <= 1:
            return {"": target.counts[name]}
        return dict(self._by_domain(name, target.shapes))

    def _by_domain(self, name: str, shapes: frozenset[int]) -> dict[str, int]:
        """Free nodes of a fabric by NVLink domain."""
        known = self._places.setdefault(name, {})
        found = known.get(shapes)
        if found is None:
            found = known[shapes] = {}
            for domain, ids in self.free(name, shapes).items():
                found[domain.nvlink] = found.get(domain.nvlink, 0) + len(ids)
        return found

    def reaches(self, target: Target) -> list[Reach]:
        """How soon each fabric could have so many nodes, at best: from the index, whatever the plan did since."""
        found = self._reaches.get(target.shapes)
        if found is None:
            fabrics = self.index.fabrics.values()
            found = self._reaches[target.shapes] = [reach_of(f, target.shapes) for f in fabrics if not target.shapes.isdisjoint(f.sizes)]
        return found

    def timeline(self, name: str) -> Timeline:
        """What comes back when on a fabric, soonest first: the fleet's holds and this plan's own starts; overdue ones at a new end."""
        found = self._timelines.get(name)
        if found is None:
            found = self._timelines[name] = self._build_timeline(self.index.fabrics[name])
        return found

    def grow(self, name: str, node_id: str, end_ms: int) -> None:
        """This plan put more on a shared node: it comes back later."""
        self.grown.setdefault(name, {})[node_id] = end_ms
        self.version += 1
        self._timelines.pop(name, None)

    def _build_timeline(self, fabric: Fabric) -> Timeline:
        now, grown, added = self.now_ms, self.grown.get(fabric.name, {}), self.added.get(fabric.name, ())
        late = bisect_left(fabric.releases, (now + 1, ""))
        if not late and not grown and not added:
            return [(end_ms, who, fabric.parts[who], None) for end_ms, who in fabric.releases]
        line: Timeline = [(end_ms, who, fabric.parts[who], None) for end_ms, who in fabric.releases[late:] if who not in grown]
        for end_ms, who in fabric.releases[:late]:
            hold = self.index.holds.get(who)
            if who not in grown:
                line.append((now + remaining_ms(now, now if hold is None else hold.since_ms, end_ms), who, fabric.parts[who], None))
        line += [(end_ms, node_id, fabric.parts[node_id], None) for node_id, end_ms in grown.items()]
        line += [(end_ms, "", back, ids) for end_ms, back, ids in added]
        line.sort(key=lambda entry: entry[:2])
        return line

    def take(self, name: str, node_ids: Iterable[str], end_ms: int | None) -> None:
        """Book nodes. `end_ms` is when they come back, None: not within this plan's horizon."""
        fabric = self.index.fabrics[name]
        self.version += 1
        self._choices.pop(name, None)
        self._places.pop(name, None)
        self._timelines.pop(name, None)
        gone = self.taken.setdefault(name, set())
        ids = tuple(node_ids)
        new = ids if gone.isdisjoint(ids) else tuple(n for n in ids if n not in gone)
        gone.update(new)
        counts = self.cells_of(name, new)
        fresh: dict[int, int] = {}
        for cell, count in counts.items():
            fresh[cell.shape] = fresh.get(cell.shape, 0) + count
        left = self._left.get(name)
        if left:
            for cell, theirs in groupby(new, fabric.cells.__getitem__):
                if ids_left := left.get((cell.shape, cell.domain)):
                    _strike(ids_left, theirs)
        if end_ms is not None:
            if self.kept_until:
                self.given.update(n for n in ids if n in self.kept_until)
            back = counts if new is ids else self.cells_of(name, ids)
            self.added.setdefault(name, []).append((end_ms, back, ids))
        fewer = self._fewer.setdefault(name, {})
        for shape, count in fresh.items():
            fewer[shape] = fewer.get(shape, 0) + count
        self._recount(name, fresh)

    def cells_of(self, name: str, node_ids: Iterable[str]) -> dict[Cell, int]:
        """How many of these nodes are in which cell."""
        return dict(Counter(map(self.index.fabrics[name].cells.__getitem__, node_ids)))

    def kept_for(self, request: Request, end_ms: int) -> list[str]:
        """Kept nodes that it may use: its own, and those of others that can't start now, when it ends before they are anybody's again, and
        before the date that their owner was promised.

        Who has nodes kept for itself may also use those of others behind it in the queue: of several gangs that each lost a member the
        first recovers whole, where all would wait for each other's halves.
        """
        mine = request.request_id in self.kept
        if not mine and end_ms > self._kept_longest:
            return []
        return [
            node_id
            for owner, node_ids in sorted(self.kept.items())
            for until in (self.lending.get(owner),)
            for node_id in node_ids
            if node_id not in self.given
            and (owner == request.request_id or (end_ms <= min(self.kept_until[node_id], until) if until is not None else mine))
        ]

    def is_free(self, node_id: str) -> bool:
        """In service, empty, and not taken by this plan."""
        name = self.index.home.get(node_id)
        if name is None:
            return False
        fabric = self.index.fabrics[name]
        busy = node_id in fabric.holder or node_id in fabric.shares or node_id in self.taken.get(name, ())
        return not busy and fabric.nodes[node_id].state is NodeState.UP

    def _keep(self, retention: Retention) -> None:
        by_fabric: dict[str, list[str]] = {}
        for node_id in sorted(set(retention.node_ids)):
            if self.is_free(node_id):
                self.kept.setdefault(retention.request_id, []).append(node_id)
                self.kept_until[node_id] = retention.until_ms
                self._kept_longest = max(self._kept_longest, retention.until_ms)
                by_fabric.setdefault(self.index.home[node_id], []).append(node_id)
        for name, node_ids in by_fabric.items():
            self.take(name, node_ids, None)

    def _look(self, request: Request) -> View:
        types = {shape.gpu_type for shape in self.index.shapes}
        targets = []
        for option in options_of(request.ask, types):
            shapes = frozenset(i for i, shape in enumerate(self.index.shapes) if serves(shape, request, option))
            plain = frozenset(i for i in shapes if not self.index.shapes[i].gpu_count)
            if option == NO_GPU and plain and plain != shapes:
                targets.append(self._target(option, plain, request.fabric_size))   # leave the GPUs to those who ask for them
            if shapes:
                targets.append(self._target(option, shapes, request.fabric_size))
        view = View(tuple(targets), request.fabric_size)
        view.refresh()
        return view

    def _target(self, option: Option, shapes: frozenset[int], fabric_size: int) -> Target:
        kind = (shapes, fabric_size)
        counts, totals = {}, {}
        for name, fabric in self.index.fabrics.items():
            known = fabric.counted.get(kind)
            if known is None:
                known = fabric.counted[kind] = _count(fabric, kind)
            if known[1]:
                counts[name], totals[name] = known
                if name in self.taken:
                    counts[name] = self.count(name, shapes, fabric_size)
        return Target(option, shapes, fabric_size, counts, totals, sorted((count, name) for name, count in counts.items()))

    def count(self, name: str, shapes: frozenset[int], fabric_size: int) -> int:
        """Free nodes of the shapes on a fabric, in whole blocks."""
        fabric = self.index.fabrics[name]
        gone = self.taken.get(name)
        if gone and fabric_size > 1:
            return blocks_in(self._by_domain(name, shapes), fabric_size)
        count = _free_blocks(fabric, shapes, fabric_size)
        if gone:
            count -= sum(fewer for shape, fewer in self._fewer[name].items() if shape in shapes)
        return count

    def _recount(self, name: str, fresh: dict[int, int]) -> None:
        for view in self._views.values():
            stale = False
            for target in view.targets:
                fewer = sum(count for shape, count in fresh.items() if shape in target.shapes)
                if fewer and name in target.counts:
                    plain = target.fabric_size <= 1
                    target.lower(name, target.counts[name] - fewer if plain else self.count(name, target.shapes, target.fabric_size))
                    stale = True
            if stale:
                view.refresh()


def _count(fabric: Fabric, kind: Kind) -> tuple[int, int]:
    """Free nodes of a kind, and all of them."""
    shapes, fabric_size = kind
    if fabric_size <= 1:
        total = sum(fabric.sizes.get(shape, 0) for shape in shapes)
    else:
        known = fabric.memo.get(kind)
        if known is None:
            known = fabric.memo[kind] = whole_blocks(((c.domain, n) for c, n in fabric.total.items() if c.shape in shapes), fabric_size)
        total = known
    return _free_blocks(fabric, shapes, fabric_size) if total else 0, total


def _free_blocks(fabric: Fabric, shapes: frozenset[int], fabric_size: int) -> int:
    if fabric_size <= 1:
        return sum(fabric.free_count.get(shape, 0) for shape in shapes)
    return whole_blocks(((d, len(ids)) for shape in shapes for d, ids in fabric.free.get(shape, {}).items()), fabric_size)


def _strike(ids: list[str], gone: Iterable[str]) -> None:
    """Take these out of sorted ids, where they are among them."""
    for node_id in gone:
        at = bisect_left(ids, node_id)
        if at < len(ids) and ids[at] == node_id:
            del ids[at]
