"""Containers of plain functions: several to a node, packed onto few nodes, never in the way of a dated claim."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.model.fleet import Node, NodeState
from phalanx.model.plan import Request, Start
from phalanx.scheduler.choose import choose
from phalanx.scheduler.fit import Option
from phalanx.scheduler.index import NEVER
from phalanx.scheduler.ledger import Ledger, Target
from phalanx.scheduler.reserve import Claim


@dataclass(slots=True)
class _Shared:
    """A node with room left."""

    node: Node
    fabric: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    end_ms: int       # when the last of those on it ends

    def fits(self, request: Request, option: Option) -> bool:
        ask = request.ask
        return self.cpu_milli >= ask.cpu_milli and self.memory_mib >= ask.memory_mib and self.gpus >= option.gpus

    def put(self, request: Request, option: Option, end_ms: int) -> None:
        self.cpu_milli -= request.ask.cpu_milli
        self.memory_mib -= request.ask.memory_mib
        self.gpus -= option.gpus
        self.end_ms = max(self.end_ms, end_ms)


class SharedNodes:
    """The shared nodes of one plan. Read from the index when the first shared request comes."""

    def __init__(self, ledger: Ledger, stopping: set[str], cleared: frozenset[str] = frozenset()) -> None:
        self.ledger = ledger
        self._stopping = stopping      # holders this plan has told to stop: their nodes are being cleared for a gang
        self._cleared = cleared        # nodes of which a part is kept for a gang already
        self.opened = False            # an empty node has become a shared one
        self._nodes: dict[str, _Shared] | None = None

    def place(self, request: Request, claims: list[Claim]) -> Start | None:
        """Room for all its containers, booked; or None, and nothing changed."""
        end_ms = self.ledger.now_ms + request.expected_ms
        for target in self.ledger.view(request).targets:
            start = self._on(request, target, claims, end_ms)
            if start is not None:
                return start
        return None

    def _on(self, request: Request, target: Target, claims: list[Claim], end_ms: int) -> Start | None:
        before: dict[str, _Shared] = {}
        chosen: list[str] = []
        for shared in self._packed(request, target):
            while len(chosen) < request.size and shared.fits(request, target.option) and self._may_grow(shared, claims, end_ms):
                before.setdefault(shared.node.node_id, _copy(shared))
                shared.put(request, target.option, end_ms)
                chosen.append(shared.node.node_id)
        fresh: list[_Shared] = []
        while len(chosen) < request.size:
            opened = self._open(request, target, claims, end_ms, {s.node.node_id for s in fresh})
            if opened is None:
                self._all().update(before)     # all or none
                return None
            fresh.append(opened)
            while len(chosen) < request.size and opened.fits(request, target.option):
                opened.put(request, target.option, end_ms)
                chosen.append(opened.node.node_id)
        self._book(before, fresh, claims, end_ms)
        fabric = self.ledger.index.home[chosen[0]]
        return Start(request.request_id, tuple(chosen), fabric, target.option.gpu_type, target.option.gpus)

    def _packed(self, request: Request, target: Target) -> list[_Shared]:
        """Nodes already shared that may serve it: without GPUs first, then the fullest."""
        cells = self.ledger.index.fabrics
        found = [
            shared for node_id, shared in self._all().items()
            if cells[shared.fabric].cells[node_id].shape in target.shapes
            and node_id not in request.excluded_nodes
            and self._stopping.isdisjoint(cells[shared.fabric].shares.get(node_id, ()))
        ]  # fmt: skip
        return sorted(found, key=lambda s: (s.node.gpu_count > 0, s.cpu_milli, s.memory_mib, s.node.node_id))

    def _may_grow(self, shared: _Shared, claims: list[Claim], end_ms: int) -> bool:
        """A node that a claim counts on for its date must not be kept busy past it."""
        cell = self.ledger.index.fabrics[shared.fabric].cells[shared.node.node_id]
        concerned = [c for c in claims if c.fabric == shared.fabric and shared.end_ms <= c.start_ms < end_ms]
        return all(claim.allows({cell: 1}, end_ms) for claim in concerned)

    def _open(self, request: Request, target: Target, claims: list[Claim], end_ms: int, opened: set[str]) -> _Shared | None:
        """An empty node, from the fabric with the fewest: large gaps are for gangs."""
        barred = request.excluded_nodes | opened
        for node_id in self.ledger.kept_for(request, end_ms):
            name = self.ledger.index.home[node_id]
            if node_id not in barred and self.ledger.index.fabrics[name].cells[node_id].shape in target.shapes:
                return self._empty(node_id, target)
        for _, name in target.fitting(1):
            free = {d: [i for i in ids if i not in barred] for d, ids in self.ledger.free(name, target.shapes).items()}
            ids = choose({d: i for d, i in free.items() if i}, 1)
            if not ids:
                continue
            here = (i for i in opened if self.ledger.index.home[i] == name and i not in self.ledger.kept_until)
            together = self.ledger.cells_of(name, (*ids, *here))
            if all(claim.allows(together, end_ms) for claim in claims if claim.fabric == name):
                return self._empty(ids[0], target)
        return None

    def _empty(self, node_id: str, target: Target) -> _Shared:
        name = self.ledger.index.home[node_id]
        node = self.ledger.index.fabrics[name].nodes[node_id]
        gpus = node.gpus_of(target.option.gpu_type) if target.option.gpu_type else node.gpu_count
        return _Shared(node, name, node.cpu_milli, node.memory_mib, gpus, self.ledger.now_ms)

    def _book(self, before: dict[str, _Shared], fresh: list[_Shared], claims: list[Claim], end_ms: int) -> None:
        for node_id, old in before.items():
            cell = self.ledger.index.fabrics[old.fabric].cells[node_id]
            for claim in claims:
                if claim.fabric == old.fabric and old.end_ms <= claim.start_ms:
                    claim.book({cell: 1}, end_ms)
            if node_id in self.ledger.index.fabrics[old.fabric].shares:
                self.ledger.grow(old.fabric, node_id, max(old.end_ms, end_ms))
        self.opened = self.opened or bool(fresh)
        for shared in fresh:
            self._all()[shared.node.node_id] = shared
            kept = shared.node.node_id in self.ledger.kept_until      # no claim counts on a kept node
            cells = self.ledger.cells_of(shared.fabric, () if kept else (shared.node.node_id,))
            for claim in claims:
                if claim.fabric == shared.fabric:
                    claim.book(cells, end_ms)
            self.ledger.take(shared.fabric, (shared.node.node_id,), end_ms)

    def _all(self) -> dict[str, _Shared]:
        if self._nodes is None:
            self._nodes = {}
            for name, fabric in self.ledger.index.fabrics.items():
                for node_id, holders in fabric.shares.items():
                    node = fabric.nodes[node_id]
                    cleared = node_id in self._cleared or any(self.ledger.index.holds[h].ending for h in holders)
                    if node.state is NodeState.UP and node_id not in fabric.holder and not cleared:
                        self._nodes[node_id] = self._measure(node, name, holders)
        return self._nodes

    def _measure(self, node: Node, name: str, holders: tuple[str, ...]) -> _Shared:
        holds = [self.ledger.index.holds[h] for h in holders]
        times = [h.node_ids.count(node.node_id) for h in holds]
        ends = [NEVER if h.ends_ms is None else h.ends_ms for h in holds]
        return _Shared(
            node, name,
            node.cpu_milli - sum(h.cpu_milli * n for h, n in zip(holds, times, strict=True)),
            node.memory_mib - sum(h.memory_mib * n for h, n in zip(holds, times, strict=True)),
            node.gpu_count - sum(h.gpu_count * n for h, n in zip(holds, times, strict=True)),
            max(ends),
        )  # fmt: skip


def _copy(shared: _Shared) -> _Shared:
    return _Shared(shared.node, shared.fabric, shared.cpu_milli, shared.memory_mib, shared.gpus, shared.end_ms)
