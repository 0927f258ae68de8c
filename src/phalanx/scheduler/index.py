"""FleetIndex: the fleet as the planner reads it, kept current by events instead of being read anew for every plan.

It is persistent: `apply` gives a new index and shares every fabric that no event touched, so a plan in flight keeps reading its own
version. Reading 100,000 rows costs 100 to 200 ms; an event costs one copied fabric.

    FleetIndex ── fabrics ── Fabric "aws/us-east/a/net-2" ── free ── shape 3 ── domain (block, rack, nvlink) ── sorted node ids
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from phalanx.model.fleet import Hold, Node, NodeState
from phalanx.scheduler.fit import fabric_of


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node registered, or a fact or the state of it changed."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node left the fleet for good."""

    node_id: str


@dataclass(frozen=True, slots=True)
class HoldChanged:
    """Something took nodes, or its end, priority or state changed. Its nodes never change."""

    hold: Hold


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """Its nodes are clean again."""

    holder_id: str


Event = NodeChanged | NodeGone | HoldChanged | HoldEnded


class Domain(NamedTuple):
    """Neighbours in the network: one rack of one block, and the NVLink domain in it."""

    block: str
    rack: str
    nvlink: str


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """Where nodes are interchangeable: same shape, same domain. Made once, so that one is told from another by identity:

    every node that an event or a plan moves is looked up by its cell, and hashing shape and domain each time took a twelfth of a tick.
    """

    shape: int
    domain: Domain


NEVER = 1 << 62   # the end of what has no known end: later than every date
Kind = tuple[frozenset[int], int]   # shape numbers, and the size of blocks


@dataclass(slots=True)
class Fabric:
    """One network of one zone. Owned by the index that made it; never changed once that index is handed out."""

    name: str
    nodes: dict[str, Node] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)                 # node id -> where it belongs
    holder: dict[str, str] = field(default_factory=dict)                 # node id -> who holds it whole
    shares: dict[str, tuple[str, ...]] = field(default_factory=dict)     # node id -> who shares it
    free: dict[int, dict[Domain, list[str]]] = field(default_factory=dict)
    free_count: dict[int, int] = field(default_factory=dict)
    total: dict[Cell, int] = field(default_factory=dict)                 # every node, down ones too
    sizes: dict[int, int] = field(default_factory=dict)                  # the same by shape
    memo: dict[Kind, int] = field(default_factory=dict)                  # totals in whole blocks, worked out once
    away: dict[Cell, dict[str, int]] = field(default_factory=dict)       # nodes out of service by state
    causes: dict[str, str] = field(default_factory=dict)                 # node id -> why it is out of service
    releases: list[tuple[int, str]] = field(default_factory=list)        # (end, holder or shared node), sorted
    ends: dict[str, int] = field(default_factory=dict)                   # the same by name
    parts: dict[str, dict[Cell, int]] = field(default_factory=dict)      # what comes back when that ends
    counted: dict[Kind, tuple[int, int]] = field(default_factory=dict)   # free and all, in whole blocks: worked out once till it changes
    reaches: dict[frozenset[int], tuple[str, list[int], list[int]]] = field(default_factory=dict)   # the same for reach.py

    def copy(self) -> Fabric:
        """A private copy of when holds end. The rest is shared, and replaced when it is written."""
        return Fabric(
            self.name, self.nodes, self.cells, self.holder, self.shares, self.free, self.free_count, self.total, self.sizes, self.memo,
            self.away, self.causes, list(self.releases), dict(self.ends), self.parts, self.counted,
        )


@dataclass(frozen=True, slots=True)
class FleetIndex:
    """Read it; never change it. `apply` gives the next one."""

    fabrics: dict[str, Fabric] = field(default_factory=dict)
    home: dict[str, str] = field(default_factory=dict)           # node id -> fabric
    holds: dict[str, Hold] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)           # workspace -> nodes held whole
    shapes: tuple[Node, ...] = ()                                # shape number -> a node stripped of its place and state
    numbers: dict[Node, int] = field(default_factory=dict)
    cells: dict[tuple[int, Domain], Cell] = field(default_factory=dict)      # grows only, and is shared with every later index

    @staticmethod
    def of(nodes: Iterable[Node], holds: Iterable[Hold] = ()) -> FleetIndex:
        """Build from nothing: what a server does once, at its start."""
        return FleetIndex().apply([*(NodeChanged(n) for n in nodes), *(HoldChanged(h) for h in holds)])

    def apply(self, events: Iterable[Event]) -> FleetIndex:
        """The index after these events, in their order. Events about unknown nodes or holders change nothing."""
        draft = _Draft(self)
        for event in events:
            match event:
                case NodeChanged(node):
                    draft.put_node(node)
                case NodeGone(node_id):
                    draft.drop_node(node_id)
                case HoldChanged(hold):
                    draft.put_hold(hold)
                case HoldEnded(holder_id):
                    draft.end_hold(holder_id)
        return draft.done()

    def all_nodes(self) -> list[Node]:
        """Every node, by id: for a snapshot to be saved."""
        return [self.fabrics[self.home[node_id]].nodes[node_id] for node_id in sorted(self.home)]

    def all_holds(self) -> list[Hold]:
        """Every hold, by id."""
        return [self.holds[holder] for holder in sorted(self.holds)]

    def recount(self) -> None:
        """Debug mode: build it anew from its own nodes and holds, and raise AssertionError where the kept counts differ."""
        fresh = FleetIndex.of(self.all_nodes(), self.all_holds())
        assert self.used == fresh.used, f"quota use: kept {self.used}, recounted {fresh.used}"
        assert set(self.fabrics) == set(fresh.fabrics), "the fabrics differ"
        for name, kept in self.fabrics.items():
            mine, new = _comparable(self, kept), _comparable(fresh, fresh.fabrics[name])
            assert mine == new, f"fabric {name}: kept {mine}, recounted {new}"


def shape_of(node: Node) -> Node:
    """What decides where a node may be used, without which node it is and how it is."""
    return replace(node, node_id="", network="", block="", rack="", fabric_id="", state=NodeState.UP, state_reason="")


class _Draft:
    """The next index while events go in: copies a fabric the first time it is touched."""

    def __init__(self, base: FleetIndex) -> None:
        self.base = base
        self.fabrics = dict(base.fabrics)
        self.home = base.home
        self.holds = dict(base.holds)
        self.used = dict(base.used)
        self.shapes = base.shapes
        self.numbers = base.numbers
        self.cells = base.cells
        self._owned: set[str] = set()
        self._own_holds: set[str] = set()
        self._own_facts: set[str] = set()
        self._own_lists: set[tuple[str, Cell]] = set()

    def done(self) -> FleetIndex:
        return FleetIndex(self.fabrics, self.home, self.holds, self.used, self.shapes, self.numbers, self.cells)

    # nodes

    def put_node(self, node: Node) -> None:
        name = fabric_of(node)
        old_name = self.home.get(node.node_id)
        if old_name is not None and (old_name != name or self._cell(node) is not self.fabrics[old_name].cells[node.node_id]):
            self.drop_node(node.node_id)     # it moved, or is another machine under an old name
            old_name = None
        fabric = self._own_node_facts(name)
        if old_name is None:
            if self.home is self.base.home:
                self.home = dict(self.home)
            self.home[node.node_id] = name
            cell = self._cell(node)
            fabric.cells[node.node_id] = cell
            fabric.total[cell] = fabric.total.get(cell, 0) + 1
            fabric.sizes[cell.shape] = fabric.sizes.get(cell.shape, 0) + 1
            fabric.nodes[node.node_id] = node
            self._welcome_back(fabric, node.node_id)
        else:
            self._uncount(fabric, node.node_id)
            fabric.nodes[node.node_id] = node
        self._count(fabric, node.node_id)
        if node.node_id in fabric.holder:
            self._release_of(fabric, fabric.holder[node.node_id])

    def drop_node(self, node_id: str) -> None:
        name = self.home.get(node_id)
        if name is None:
            return
        fabric = self._own_node_facts(name)
        self._uncount(fabric, node_id)
        cell = fabric.cells.pop(node_id)
        fabric.total[cell] -= 1
        if not fabric.total[cell]:
            del fabric.total[cell]
        fabric.sizes[cell.shape] -= 1
        if not fabric.sizes[cell.shape]:
            del fabric.sizes[cell.shape]
        del fabric.nodes[node_id]
        holder = fabric.holder.pop(node_id, None)
        fabric.shares.pop(node_id, None)
        if holder is not None:
            self._release_of(fabric, holder)
        if self.home is self.base.home:
            self.home = dict(self.home)
        del self.home[node_id]
        if not fabric.nodes:
            del self.fabrics[name]

    def _welcome_back(self, fabric: Fabric, node_id: str) -> None:
        """A node that left and registers again may still carry what it carried: it must not look free."""
        for hold in self.holds.values():
            if node_id in hold.node_ids:
                if hold.whole:
                    fabric.holder[node_id] = hold.holder_id
                else:
                    fabric.shares[node_id] = tuple(sorted((*fabric.shares.get(node_id, ()), hold.holder_id)))

    # holds

    def put_hold(self, hold: Hold) -> None:
        old = self.holds.get(hold.holder_id)
        if old is not None and old.whole and hold.whole and (old.node_ids, old.workspace) == (hold.node_ids, hold.workspace):
            self.holds[hold.holder_id] = hold      # the common case: only its end or state changed
            if old.ends_ms != hold.ends_ms:
                end_ms = NEVER if hold.ends_ms is None else hold.ends_ms
                for name in self._fabrics_of(hold):
                    if name is not None:
                        self._move_end(self._own(name), hold.holder_id, end_ms)
            return
        if old is not None:
            self.end_hold(hold.holder_id)
        self.holds[hold.holder_id] = hold
        if hold.whole:
            self.used[hold.workspace] = self.used.get(hold.workspace, 0) + len(hold.node_ids)
        self._place(hold, True)

    def _fabrics_of(self, hold: Hold) -> list[str | None]:
        """Where its nodes are: all of them where the first is, but for one that has moved, or left (None)."""
        first = self.home.get(hold.node_ids[0]) if hold.node_ids else None
        if first is not None and sum(self.fabrics[first].parts.get(hold.holder_id, {}).values()) == len(hold.node_ids):
            return [first]
        return list(dict.fromkeys(map(self.home.get, hold.node_ids)))

    @staticmethod
    def _move_end(fabric: Fabric, who: str, end_ms: int) -> None:
        if who in fabric.ends:
            del fabric.releases[bisect_left(fabric.releases, (fabric.ends[who], who))]
            insort(fabric.releases, (end_ms, who))
            fabric.ends[who] = end_ms

    def end_hold(self, holder_id: str) -> None:
        hold = self.holds.pop(holder_id, None)
        if hold is None:
            return
        if hold.whole:
            self.used[hold.workspace] -= len(hold.node_ids)
            if not self.used[hold.workspace]:
                del self.used[hold.workspace]
        self._place(hold, False)

    def _place(self, hold: Hold, here: bool) -> None:
        """Put a hold onto its nodes, or take it off. Nodes that left the fleet before it are passed over."""
        node_ids = list(dict.fromkeys(hold.node_ids))
        names = self._fabrics_of(hold)
        for name in names:
            if name is None:
                continue
            fabric = self._own_held(name)
            mine = node_ids if len(names) == 1 else [n for n in node_ids if n in fabric.nodes]
            if hold.whole:
                self._hold_nodes(fabric, mine, hold.holder_id, here)
                self._release_of(fabric, hold.holder_id)
                continue
            for node_id in mine:
                self._share_node(fabric, node_id, hold.holder_id, here)

    def _hold_nodes(self, fabric: Fabric, node_ids: list[str], who: str, here: bool) -> None:
        """By cell, so that the lists of a cell are looked up once for all of a gang's nodes in it."""
        holder, shares, nodes = fabric.holder, fabric.shares, fabric.nodes
        if here:
            theirs = node_ids if holder.keys().isdisjoint(node_ids) else [n for n in node_ids if n not in holder]
            holder.update(dict.fromkeys(node_ids, who))
        else:
            theirs = [n for n in node_ids if holder.get(n) == who]
            for node_id in theirs:
                del holder[node_id]
        if fabric.away or shares:
            theirs = [n for n in theirs if nodes[n].state is NodeState.UP and n not in shares]
        for cell, ids in groupby(theirs, fabric.cells.__getitem__):
            if here:
                self._remove_all_free(fabric, cell, list(ids))
            else:
                self._add_all_free(fabric, cell, list(ids))

    def _share_node(self, fabric: Fabric, node_id: str, holder: str, here: bool) -> None:
        self._uncount(fabric, node_id)
        others = tuple(s for s in fabric.shares.pop(node_id, ()) if s != holder)
        if here:
            others = tuple(sorted((*others, holder)))
        if others:
            fabric.shares[node_id] = others
        self._count(fabric, node_id)

    # counts

    def _count(self, fabric: Fabric, node_id: str) -> None:
        """Enter a node into the counts, as it is now."""
        node, cell = fabric.nodes[node_id], fabric.cells[node_id]
        if node.state is not NodeState.UP:
            fabric.away = {**fabric.away, cell: _plus(fabric.away.get(cell, {}), node.state.value, 1)}
            if node.state_reason:
                fabric.causes = {**fabric.causes, node_id: node.state_reason}
        elif node_id not in fabric.holder and node_id not in fabric.shares:
            self._add_free(fabric, node_id)
        if node_id in fabric.shares:
            self._release_of(fabric, node_id)

    def _uncount(self, fabric: Fabric, node_id: str) -> None:
        """Take a node out of the counts, before it changes."""
        node, cell = fabric.nodes[node_id], fabric.cells[node_id]
        if node.state is not NodeState.UP:
            left = _plus(fabric.away[cell], node.state.value, -1)
            fabric.away = {c: states for c, states in {**fabric.away, cell: left}.items() if states}
            fabric.causes = {n: why for n, why in fabric.causes.items() if n != node_id}
        elif node_id not in fabric.holder and node_id not in fabric.shares:
            self._remove_free(fabric, node_id)
        if node_id in fabric.shares:
            _forget(fabric, node_id)

    def _add_free(self, fabric: Fabric, node_id: str) -> None:
        self._add_all_free(fabric, fabric.cells[node_id], [node_id])

    def _remove_free(self, fabric: Fabric, node_id: str) -> None:
        self._remove_all_free(fabric, fabric.cells[node_id], [node_id])

    def _add_all_free(self, fabric: Fabric, cell: Cell, node_ids: list[str]) -> None:
        fabric.free.setdefault(cell.shape, {}).setdefault(cell.domain, [])
        ids = self._ids(fabric, cell)
        for node_id in node_ids:
            insort(ids, node_id)
        fabric.free_count[cell.shape] = fabric.free_count.get(cell.shape, 0) + len(node_ids)

    def _remove_all_free(self, fabric: Fabric, cell: Cell, node_ids: list[str]) -> None:
        ids = self._ids(fabric, cell)
        for node_id in node_ids:
            del ids[bisect_left(ids, node_id)]
        if not ids:
            del fabric.free[cell.shape][cell.domain]
        fabric.free_count[cell.shape] -= len(node_ids)
        if not fabric.free_count[cell.shape]:
            del fabric.free_count[cell.shape], fabric.free[cell.shape]

    def _release_of(self, fabric: Fabric, who: str) -> None:
        """Enter when a holder (or all who share a node) ends, and which nodes come back into service then."""
        _forget(fabric, who)
        if who in fabric.shares:
            ends = [NEVER if (end := self.holds[s].ends_ms) is None else end for s in fabric.shares[who] if s in self.holds]
            end_ms = max(ends, default=NEVER)
            mine = [who]
        elif (hold := self.holds.get(who)) is not None:
            end_ms = NEVER if hold.ends_ms is None else hold.ends_ms
            mine = [n for n in hold.node_ids if fabric.holder.get(n) == who]
        else:
            return
        if not mine:
            return
        if fabric.away:
            mine = [n for n in mine if fabric.nodes[n].state is NodeState.UP]
        back = dict(Counter(map(fabric.cells.__getitem__, mine)))
        fabric.parts[who] = back
        insort(fabric.releases, (end_ms, who))
        fabric.ends[who] = end_ms

    def _ids(self, fabric: Fabric, cell: Cell) -> list[str]:
        """The free ids of a cell, copied the first time this draft writes to them."""
        domains = fabric.free[cell.shape]
        if (fabric.name, cell) not in self._own_lists:
            self._own_lists.add((fabric.name, cell))
            domains[cell.domain] = list(domains[cell.domain])
        return domains[cell.domain]

    def _own(self, name: str) -> Fabric:
        if name not in self._owned:
            old = self.fabrics.get(name)
            self.fabrics[name] = Fabric(name) if old is None else old.copy()
            self._owned.add(name)
        elif name not in self.fabrics:
            self.fabrics[name] = Fabric(name)
        return self.fabrics[name]

    def _own_held(self, name: str) -> Fabric:
        """Half of the events only move an end: these copy nothing of this."""
        fabric = self._own(name)
        if name not in self._own_holds:
            self._own_holds.add(name)
            fabric.holder, fabric.shares, fabric.parts = dict(fabric.holder), dict(fabric.shares), dict(fabric.parts)
            fabric.free, fabric.free_count = {shape: dict(domains) for shape, domains in fabric.free.items()}, dict(fabric.free_count)
            fabric.counted = {}
        return fabric

    def _own_node_facts(self, name: str) -> Fabric:
        fabric = self._own_held(name)
        if name not in self._own_facts:
            self._own_facts.add(name)
            fabric.nodes, fabric.cells = dict(fabric.nodes), dict(fabric.cells)
            fabric.total, fabric.sizes, fabric.memo = dict(fabric.total), dict(fabric.sizes), {}
        return fabric

    def _cell(self, node: Node) -> Cell:
        shape = shape_of(node)
        number = self.numbers.get(shape)
        if number is None:
            number = len(self.shapes)
            self.shapes = (*self.shapes, shape)
            self.numbers = {**self.numbers, shape: number}
        domain = Domain(node.block, node.rack, node.fabric_id)
        cell = self.cells.get((number, domain))
        if cell is None:
            cell = self.cells[number, domain] = Cell(number, domain)
        return cell


def _forget(fabric: Fabric, who: str) -> None:
    if fabric.parts.pop(who, None) is not None:
        end_ms = fabric.ends.pop(who)
        del fabric.releases[bisect_left(fabric.releases, (end_ms, who))]


def _plus(counts: dict[str, int], name: str, change: int) -> dict[str, int]:
    changed = {**counts, name: counts.get(name, 0) + change}
    return {key: value for key, value in changed.items() if value}


def _comparable(index: FleetIndex, fabric: Fabric) -> object:
    """A fabric's counts with shape numbers replaced by the shapes: numbers depend on history, counts must not."""
    def cells(counts: dict[Cell, int]) -> dict[tuple[Node, Domain], int]:
        return {(index.shapes[cell.shape], cell.domain): n for cell, n in counts.items()}

    free = {index.shapes[shape]: domains for shape, domains in fabric.free.items()}
    away = {(index.shapes[cell.shape], cell.domain): states for cell, states in fabric.away.items()}
    parts = {who: cells(back) for who, back in fabric.parts.items()}
    free_count = {index.shapes[shape]: n for shape, n in fabric.free_count.items()}
    return free, free_count, cells(fabric.total), away, fabric.causes, fabric.releases, parts
