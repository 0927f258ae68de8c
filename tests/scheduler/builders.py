"""Fleets, gangs and the applier, in as few words as a story needs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from phalanx.model.gpus import parse_gpu
from phalanx.model.plan import Ask, Hold, Node, NodeState, Plan, Reason, Request, Retention, Snapshot

HOUR = 3_600_000
MINUTE = 60_000


def node(name: str, **facts: Any) -> Node:
    """A node of 8 H100 on network net-1, unless facts say otherwise."""
    base: dict[str, Any] = {
        "gpu_type": "H100", "gpu_count": 8, "cpu_milli": 64_000, "memory_mib": 1 << 20, "rdma": True, "network": "net-1", "rack": "r0",
    }  # fmt: skip
    return Node(name, **(base | facts))


def nodes(count: int, prefix: str = "node", **facts: Any) -> tuple[Node, ...]:
    """`count` of them: node-00, node-01..."""
    return tuple(node(f"{prefix}-{i:02}", **facts) for i in range(count))


def domains(count: int, size: int, network: str = "net-1") -> tuple[Node, ...]:
    """`count` NVLink domains of `size` nodes, a rack each."""
    return tuple(
        node(f"{network}-d{d}-{i:02}", network=network, rack=f"rack{d}", fabric_id=f"{network}-nv{d}")
        for d in range(count)
        for i in range(size)
    )


def cpu_node(name: str, cpus: float = 4, memory_mib: int = 8192, **facts: Any) -> Node:
    """A node without GPUs."""
    return Node(name, cpu_milli=round(cpus * 1000), memory_mib=memory_mib, **({"network": "net-1"} | facts))


def gang(name: str, size: int, *gpus: str, **more: Any) -> Request:
    """A request for `size` whole nodes, 8 H100 each unless named; an hour long."""
    ask = Ask(gpus=tuple(parse_gpu(g) for g in (gpus or ("H100:8",))))
    return Request(name, size, ask, **({"predicted_ms": HOUR} | more))


def share(name: str, cpus: float = 1, memory_mib: int = 128, gpu: str = "", **more: Any) -> Request:
    """One container of a plain function, five minutes long."""
    ask = Ask(False, round(cpus * 1000), memory_mib, gpus=(parse_gpu(gpu),) if gpu else ())
    return Request(name, 1, ask, **({"predicted_ms": 5 * MINUTE} | more))


def hold(name: str, held: tuple[Node, ...] | tuple[str, ...], ends_ms: int | None = HOUR, **more: Any) -> Hold:
    """A gang on these nodes."""
    return Hold(name, tuple(n if isinstance(n, str) else n.node_id for n in held), ends_ms=ends_ms, **more)


def reason_of(plan: Plan, name: str) -> Reason:
    """Why it waits; KeyError if it doesn't."""
    return {w.request_id: w.reason for w in plan.waits}[name]


def started(plan: Plan) -> list[str]:
    """Names, in the order of the decisions."""
    return [s.request_id for s in plan.starts]


def apply(snapshot: Snapshot, made: Plan) -> Snapshot:
    """What the server does with a plan, with every start and stop succeeding at once: victims' nodes are kept for whom they made room."""
    requests = {r.request_id: r for r in snapshot.pending}
    holds = []
    for start in made.starts:
        request = requests[start.request_id]
        whole = request.ask.whole
        holds.append(Hold(
            start.request_id, start.node_ids, whole, 0 if whole else request.ask.cpu_milli, 0 if whole else request.ask.memory_mib,
            start.gpu_count, snapshot.now_ms, snapshot.now_ms + request.expected_ms, request.workspace,
            priority=request.priority, gpu_type=start.gpu_type,
        ))  # fmt: skip
    stopped = {e.holder_id for e in made.evict}
    begun = {s.request_id for s in made.starts}
    victims = {h.holder_id: h for h in snapshot.holds}
    kept = tuple(Retention(e.for_request, victims[e.holder_id].node_ids, snapshot.now_ms + 2 * MINUTE) for e in made.evict)
    return replace(
        snapshot,
        holds=tuple(h for h in snapshot.holds if h.holder_id not in stopped) + tuple(holds),
        pending=tuple(r for r in snapshot.pending if r.request_id not in begun),
        reservations=made.reserve,
        retentions=snapshot.retentions + kept,
    )


def check(snapshot: Snapshot, made: Plan) -> None:
    """What is true of every plan whatever the snapshot."""
    by_id = {n.node_id: n for n in snapshot.nodes}
    requests = {r.request_id: r for r in snapshot.pending}
    assert sorted([*started(made), *(w.request_id for w in made.waits)]) == sorted(requests), "everybody is told exactly one thing"
    whole = Counter(n for h in snapshot.holds if h.whole for n in h.node_ids)
    shared = {n for h in snapshot.holds if not h.whole for n in h.node_ids}
    used: dict[str, list[tuple[int, int, int]]] = {}
    for h in snapshot.holds:
        if not h.whole:
            for n in h.node_ids:
                used.setdefault(n, []).append((h.cpu_milli, h.memory_mib, h.gpu_count))
    for start in made.starts:
        request = requests[start.request_id]
        assert len(start.node_ids) == request.size, "all or nothing"
        here = [by_id[n] for n in start.node_ids]
        assert all(n.state is NodeState.UP for n in here), "nodes in service only"
        assert not request.excluded_nodes & set(start.node_ids)
        assert not request.rdma or all(n.rdma or n.simulated for n in here)
        assert not request.where.regions or all(n.region in request.where.regions for n in here)
        if request.ask.whole:
            assert len({(n.cloud, n.region, n.zone, n.network) for n in here}) == 1, "one fabric"
            assert len({n.gpu_type for n in here}) == 1 or not request.ask.gpus, "one GPU type"
            whole.update(start.node_ids)
            for i in range(0, request.size, request.fabric_size):
                block = here[i : i + request.fabric_size]
                assert len({n.fabric_id for n in block}) == 1, "a block is in one NVLink domain"
        else:
            for n in start.node_ids:
                shared.add(n)
                used.setdefault(n, []).append((request.ask.cpu_milli, request.ask.memory_mib, start.gpu_count))
    assert all(count == 1 for count in whole.values()), "no node twice"
    assert not set(whole) & shared, "a node is empty, shared or whole"
    for n, parts in used.items():
        if n in by_id:
            room = (by_id[n].cpu_milli, by_id[n].memory_mib, by_id[n].gpu_count)
            assert all(sum(p[i] for p in parts) <= room[i] for i in range(3)), f"{n} is overcommitted: {parts} in {room}"
    stopped = [e.holder_id for e in made.evict]
    assert len(stopped) == len(set(stopped)), "nobody is stopped twice"
    assert set(stopped) <= {h.holder_id for h in snapshot.holds}
