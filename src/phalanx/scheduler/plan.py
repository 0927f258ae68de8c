"""The gang planner: `plan(snapshot, policy)`, pure, total, deterministic."""

from __future__ import annotations

from phalanx.model.fleet import Node, NodeState
from phalanx.model.plan import Plan, Policy, Request, Snapshot, Start, Wait
from phalanx.model.reasons import Number, Reason, ReasonCode, Wish, WishKind
from phalanx.scheduler.fit import Option, can_ever_fit, describe_each, fabric_of, options_of, serves

_DEFAULT = Policy()


def plan(snapshot: Snapshot, policy: Policy = _DEFAULT) -> Plan:
    """Decide for every pending request: start it, or say why it waits."""
    table = _Table(snapshot)
    starts: list[Start] = []
    waits: list[Wait] = []
    queue = sorted(snapshot.pending, key=lambda r: (r.warm, -r.priority, r.submitted_ms, r.request_id))
    for request in queue:
        reason = table.barred(request)
        start = table.place(request) if reason is None else None
        if start is not None:
            table.take(request, start)
            starts.append(start)
        else:
            waits.append(Wait(request.request_id, reason or table.why(request)))
    return Plan(snapshot.version, tuple(starts), tuple(waits), order=tuple(r.request_id for r in queue))


class _Table:
    """What is free while one plan is made. Built anew for each plan."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot.now_ms
        self.nodes = sorted(snapshot.nodes, key=lambda n: (fabric_of(n), n.block, n.rack, n.fabric_id, n.node_id))
        self.types = {n.gpu_type for n in self.nodes}
        self.offers = snapshot.offers
        self.whole: dict[str, str] = {}
        self.shares: dict[str, list[tuple[int, int, int]]] = {}
        self.kept = {n: r.request_id for r in snapshot.retentions if r.until_ms > self.now for n in r.node_ids}
        self.quota = {q.workspace: q.nodes for q in snapshot.quotas}
        self.used: dict[str, int] = {}
        for hold in snapshot.holds:
            if hold.whole:
                self.used[hold.workspace] = self.used.get(hold.workspace, 0) + len(hold.node_ids)
            for node_id in hold.node_ids:
                if hold.whole:
                    self.whole[node_id] = hold.holder_id
                else:
                    self.shares.setdefault(node_id, []).append((hold.cpu_milli, hold.memory_mib, hold.gpu_count))

    def barred(self, request: Request) -> Reason | None:
        """Reasons that have nothing to do with free nodes."""
        if request.not_before_ms > self.now:
            numbers: tuple[tuple[str, Number], ...] = (("attempt", request.attempt), ("until_ms", request.not_before_ms))
            return Reason(ReasonCode.BACKOFF, numbers, request.not_before_ms)
        limit = self.quota.get(request.workspace)
        used = self.used.get(request.workspace, 0)
        if request.ask.whole and limit is not None and used + request.size > limit:
            return Reason(
                ReasonCode.QUOTA,
                (("workspace", request.workspace), ("used", used), ("limit", limit), ("need", request.size)),
                None,
                Wish(WishKind.QUOTA_RAISED, used + request.size - limit, request.workspace),
            )
        return can_ever_fit(request, self.nodes, self.offers)

    def place(self, request: Request) -> Start | None:
        """The first option with room: the fabric with the fewest free nodes left over, neighbours together."""
        for option in options_of(request.ask, self.types):
            start = self._gang(request, option) if request.ask.whole else self._share(request, option)
            if start is not None:
                return start
        return None

    def take(self, request: Request, start: Start) -> None:
        """Book a start, so that the next request sees it."""
        if request.ask.whole:
            self.used[request.workspace] = self.used.get(request.workspace, 0) + request.size
        for node_id in start.node_ids:
            if request.ask.whole:
                self.whole[node_id] = request.request_id
            else:
                self.shares.setdefault(node_id, []).append((request.ask.cpu_milli, request.ask.memory_mib, start.gpu_count))

    def _usable(self, node: Node, request: Request) -> bool:
        kept_for = self.kept.get(node.node_id, request.request_id)
        return node.state is NodeState.UP and node.node_id not in request.excluded_nodes and kept_for == request.request_id

    def _gang(self, request: Request, option: Option) -> Start | None:
        fabrics: dict[str, list[Node]] = {}
        for node in self.nodes:
            busy = node.node_id in self.whole or node.node_id in self.shares
            if not busy and self._usable(node, request) and serves(node, request, option):
                fabrics.setdefault(fabric_of(node), []).append(node)
        best: tuple[int, str, list[Node]] | None = None
        for name, free in sorted(fabrics.items()):
            chosen = _blocks(free, request)
            if chosen and (best is None or len(free) < best[0]):
                best = (len(free), name, chosen)
        if best is None:
            return None
        return Start(request.request_id, tuple(n.node_id for n in best[2]), best[1], option.gpu_type, option.gpus)

    def _share(self, request: Request, option: Option) -> Start | None:
        """Fullest shared node first, then an empty node, those without GPUs before the others."""
        room = {}
        for node in self.nodes:
            if node.node_id not in self.whole and self._usable(node, request) and serves(node, request, option):
                shares = self.shares.get(node.node_id, [])
                gpus = node.gpus_of(option.gpu_type) if option.gpu_type else 0
                room[node.node_id] = [
                    node.cpu_milli - sum(s[0] for s in shares),
                    node.memory_mib - sum(s[1] for s in shares),
                    gpus - sum(s[2] for s in shares) if option.gpu_type else 0,
                ]
        order = sorted(
            (n for n in self.nodes if n.node_id in room),
            key=lambda n: (n.node_id not in self.shares, n.gpu_count > 0, room[n.node_id][0], n.node_id),
        )
        ask = (request.ask.cpu_milli, request.ask.memory_mib, option.gpus)
        chosen: list[str] = []
        for node in order:
            left = room[node.node_id]
            while len(chosen) < request.size and all(have >= want for have, want in zip(left, ask, strict=True)):
                chosen.append(node.node_id)
                left[:] = [have - want for have, want in zip(left, ask, strict=True)]
        if len(chosen) < request.size:
            return None
        return Start(request.request_id, tuple(chosen), "", option.gpu_type, option.gpus)

    def why(self, request: Request) -> Reason:
        """It could run on this fleet, and there is no room now: count what its nodes do, on the fabric where most are free."""
        best: tuple[int, str, dict[str, int], set[str], set[str]] | None = None
        free_in_all = 0
        for option in options_of(request.ask, self.types):
            fabrics: dict[str, list[Node]] = {}
            for node in self.nodes:
                if serves(node, request, option):
                    fabrics.setdefault(fabric_of(node), []).append(node)
            for name, nodes in sorted(fabrics.items()):
                counts: dict[str, int] = {}
                holders: set[str] = set()
                causes: set[str] = set()
                for node in nodes:
                    state = self._state(node, request)
                    counts[state] = counts.get(state, 0) + 1
                    if state == "held":
                        holders.add(self.whole[node.node_id])
                    elif state in ("draining", "down", "cordoned") and node.state_reason:
                        causes.add(node.state_reason)
                free_in_all += counts.get("free", 0)
                if best is None or counts.get("free", 0) > best[0]:
                    best = (counts.get("free", 0), name, counts, holders, causes)
        assert best is not None, "can_ever_fit has refused what no node serves"
        free, name, counts, holders, causes = best
        numbers: list[tuple[str, Number]] = [("need", request.size), ("free", free), ("each", describe_each(request.ask))]
        for state in ("held", "shared", "draining", "cordoned", "down", "retained", "excluded"):
            if counts.get(state):
                numbers.append((state, counts[state]))
                if state in ("draining", "cordoned", "down") and causes:
                    numbers.append((f"{state}_why", ", ".join(sorted(causes))))
        if holders:
            shown = sorted(holders)
            numbers.append(("held_by", " and ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")))
        away = sum(counts.get(state, 0) for state in ("draining", "cordoned", "down"))
        network = name.rsplit("/", 1)[-1]
        if away and free + away >= request.size:
            wish = Wish(WishKind.NODES_BACK, request.size - free, network)
            return Reason(ReasonCode.DRAINING, (*numbers, ("network", network)), None, wish)
        if request.ask.whole and free_in_all >= request.size:
            code = ReasonCode.DOMAIN if request.fabric_size > 1 else ReasonCode.FRAGMENTED
            extra: tuple[tuple[str, Number], ...] = (("largest", free), ("network", network), ("fabric_size", request.fabric_size))
            wish = Wish(WishKind.NODES_ADDED, request.size - free, network)
            return Reason(code, (("need", request.size), ("free", free_in_all), *extra), None, wish)
        return Reason(ReasonCode.NO_CAPACITY, tuple(numbers), None, Wish(WishKind.NODES_ADDED, request.size - free, network))

    def _state(self, node: Node, request: Request) -> str:
        if node.state is not NodeState.UP:
            return str(node.state.value)
        if node.node_id in self.whole:
            return "held"
        if node.node_id in request.excluded_nodes:
            return "excluded"
        if node.node_id in self.kept and self.kept[node.node_id] != request.request_id:
            return "retained"
        return "shared" if node.node_id in self.shares else "free"


def _blocks(free: list[Node], request: Request) -> list[Node]:
    """`size` nodes in rank order, or nothing. Nodes come sorted by block, rack and NVLink domain, so neighbours stay together."""
    if request.fabric_size <= 1:
        return free[: request.size] if len(free) >= request.size else []
    domains: dict[str, list[Node]] = {}
    for node in free:
        if node.fabric_id:
            domains.setdefault(node.fabric_id, []).append(node)
    chosen: list[Node] = []
    for nodes in domains.values():
        whole = len(nodes) // request.fabric_size * request.fabric_size
        chosen.extend(nodes[: min(whole, request.size - len(chosen))])
    return chosen if len(chosen) == request.size else []
