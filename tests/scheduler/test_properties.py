"""What holds for every snapshot (scheduling.md 5.8 of the reference), searched for counter-examples."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.model.plan import NO_LIMIT, Hold, Node, NodeState, Policy, Quota, Request, Retention, Snapshot
from phalanx.scheduler.index import FleetIndex, HoldChanged, HoldEnded, NodeChanged, NodeGone
from phalanx.scheduler.plan import plan
from phalanx.scheduler.record import dump_plan, dump_snapshot
from phalanx.scheduler.simulation.run import exact, simulate
from phalanx.scheduler.simulation.topology import uniform
from phalanx.scheduler.simulation.trace import Job
from tests.scheduler.builders import HOUR, MINUTE, apply, check, gang, hold, node, share, started

SEARCH = settings(max_examples=int(os.environ.get("PHALANX_EXAMPLES", "60")), deadline=None, suppress_health_check=[HealthCheck.too_slow])
DEBUG = Policy(debug=True)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Node, ...]:
    found = []
    for f in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["H100", "H100", "H200", "A100-80GB"]))
        for i in range(draw(st.integers(1, 9))):
            state = draw(st.sampled_from([NodeState.UP] * 6 + [NodeState.DRAINING, NodeState.DOWN]))
            found.append(node(
                f"n{f}-{i}", gpu_type=kind, network=f"net-{f}", rack=f"r{i // 3}", fabric_id=f"nv{f}-{i // 4}", rdma=f != 2,
                region=draw(st.sampled_from(["us", "eu"])) if f == 1 else "us",
                state=state, state_reason="" if state is NodeState.UP else "test",
            ))  # fmt: skip
    return tuple(found)


@st.composite
def requests(draw: st.DrawFn, name: str, fleet: tuple[Node, ...]) -> Request:
    common = {
        "submitted_ms": draw(st.integers(0, 10)) * MINUTE, "workspace": draw(st.sampled_from(["a", "b"])),
        "priority": draw(st.sampled_from([0, 0, 0, 1])), "predicted_ms": draw(st.integers(1, 200)) * MINUTE,
    }  # fmt: skip
    if draw(st.integers(0, 3)) == 0:
        return share(name, draw(st.sampled_from([1, 8, 40])), gpu=draw(st.sampled_from(["", "", "H100:2"])), **common)
    fabric_size = draw(st.sampled_from([1, 1, 1, 2]))
    size = draw(st.integers(1, 4)) * fabric_size
    gpus = draw(st.sampled_from([("H100:8",), ("H100!:8",), ("A100:8", "H100:8"), ("any:8",)]))
    excluded = frozenset(draw(st.sets(st.sampled_from([n.node_id for n in fleet]), max_size=2)))
    more = {"fabric_size": fabric_size, "rdma": draw(st.booleans()), "excluded_nodes": excluded, "warm": draw(st.integers(0, 9)) == 0}
    return gang(name, size, *gpus, **common, **more)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    fleet = draw(fleets())
    holds: list[Hold] = []
    empty = {f: [n for n in fleet if n.network == f] for f in {n.network for n in fleet}}
    for i in range(draw(st.integers(0, 6))):
        network = draw(st.sampled_from(sorted(empty)))
        size = draw(st.integers(1, 3))
        if len(empty[network]) < size:
            continue
        here, empty[network] = tuple(empty[network][:size]), empty[network][size:]
        if draw(st.integers(0, 4)) == 0:
            gpus = {"gpu_count": draw(st.sampled_from([0, 2])), "gpu_type": here[0].gpu_type}
            more = {"workspace": draw(st.sampled_from(["a", "b"])), "warm": draw(st.integers(0, 3)) == 0}
            end = draw(st.integers(1, 90)) * MINUTE
            holds.append(hold(f"h{i}", here[:1], end, whole=False, cpu_milli=4000, memory_mib=1024, **gpus, **more))
        else:
            ends = draw(st.one_of(st.none(), st.integers(1, 200)))
            priority, workspace = draw(st.sampled_from([0, 0, 1])), draw(st.sampled_from(["a", "b"]))
            warm = draw(st.integers(0, 9)) == 0
            end = None if ends is None else ends * MINUTE
            kind = here[0].gpu_type
            holds.append(hold(f"h{i}", here, end, priority=priority, workspace=workspace, warm=warm, gpu_type=kind, gpu_count=8))
    pending = tuple(draw(requests(f"q{i}", fleet)) for i in range(draw(st.integers(0, 8))))
    quotas = draw(st.sampled_from([
        (), (), (Quota("a", 3),), (Quota("a", 2, "all", None), Quota("b", 4, "all", 1)),
        (Quota("a", NO_LIMIT, gpus=(("H100", 18),)), Quota("b", 5, gpus=(("A100-80GB", 8), ("H100", 4)))),
    ]))  # fmt: skip
    free = [n.node_id for ns in empty.values() for n in ns]
    kept = (Retention("q0", tuple(free[:2]), 30 * MINUTE),) if free and draw(st.integers(0, 4)) == 0 else ()
    return Snapshot(10 * MINUTE, fleet, tuple(holds), pending, kept, quotas=quotas)


@SEARCH
@given(snapshots())
def test_every_plan_keeps_every_rule(snapshot: Snapshot) -> None:
    check(snapshot, plan(snapshot))


@SEARCH
@given(snapshots())
def test_quotas_are_kept(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    after = apply(snapshot, made)
    for quota in snapshot.quotas:
        before = sum(len(h.node_ids) for h in snapshot.holds if h.whole and h.workspace == quota.workspace)
        used = sum(len(h.node_ids) for h in after.holds if h.whole and h.workspace == quota.workspace)
        limit = quota.nodes + (quota.borrow if quota.borrow is not None else 1000)
        assert used <= max(limit, before)
        for kind, most in quota.gpus:
            assert gpus_of(after, quota.workspace, kind) <= max(most, gpus_of(snapshot, quota.workspace, kind))


def gpus_of(snapshot: Snapshot, workspace: str, kind: str) -> int:
    """Of clusters and of plain functions' containers."""
    return sum(len(h.node_ids) * h.gpu_count for h in snapshot.holds if (h.workspace, h.gpu_type) == (workspace, kind))


@SEARCH
@given(snapshots(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_gangs_in_the_snapshot_means_nothing(snapshot: Snapshot, shuffle: random.Random) -> None:
    fleet, holds, pending = list(snapshot.nodes), list(snapshot.holds), list(snapshot.pending)
    for items in (fleet, holds, pending):
        shuffle.shuffle(items)
    other = replace(snapshot, nodes=tuple(fleet), holds=tuple(holds), pending=tuple(pending))
    assert dump_plan(plan(snapshot)) == dump_plan(plan(other))


def test_the_plan_is_the_same_bytes_under_every_hash_seed() -> None:
    fleet = tuple(n for f in range(3) for n in (node(f"n{f}-{i}", network=f"net-{f}", rack=f"r{i % 3}") for i in range(9)))
    pending = tuple(gang(f"q{i}", 1 + i % 5, workspace=f"w{i % 3}", submitted_ms=i) for i in range(20))
    text = dump_snapshot(Snapshot(HOUR, fleet, (hold("h", fleet[:3]),), pending))
    code = "import sys; from phalanx.scheduler.record import *; from phalanx.scheduler.plan import plan\n" \
           "print(dump_plan(plan(load_snapshot(sys.stdin.read()))))"  # fmt: skip
    outputs = set()
    for seed in ("0", "1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        outputs.add(subprocess.run([sys.executable, "-c", code], input=text, env=env, capture_output=True, text=True, check=True).stdout)
    assert len(outputs) == 1


@SEARCH
@given(snapshots())
def test_a_plan_that_was_carried_out_leaves_nothing_to_start(snapshot: Snapshot) -> None:
    made = plan(snapshot, Policy(preempt=False))
    assert started(plan(apply(snapshot, made), Policy(preempt=False))) == []


@SEARCH
@given(snapshots())
def test_one_more_free_node_never_keeps_the_first_in_the_queue_from_starting(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    if not made.order or made.order[0] not in started(made):
        return
    first = next(r for r in snapshot.pending if r.request_id == made.order[0])
    for network in {n.network for n in snapshot.nodes}:
        like = next(n for n in snapshot.nodes if n.network == network)
        more = replace(snapshot, nodes=(*snapshot.nodes, replace(like, node_id=f"{network}-new", state=NodeState.UP)))
        assert first.request_id in started(plan(more))


@SEARCH
@given(snapshots())
def test_whoever_is_stopped_makes_room_for_the_one_named(snapshot: Snapshot) -> None:
    made = plan(snapshot)
    winners = {e.for_request for e in made.evict}
    after = plan(apply(snapshot, made))
    assert winners <= set(started(after))


@SEARCH
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 8), st.integers(1, 400)), min_size=1, max_size=25), st.integers(1, 2))
def test_no_promised_date_moves_later_when_lengths_are_known(jobs: list[tuple[int, int, int]], fabrics: int) -> None:
    trace = sorted((Job(i, at * MINUTE, size, length * MINUTE) for i, (at, size, length) in enumerate(jobs)), key=lambda j: j.submit_ms)
    dates: dict[str, int] = {}

    def watch(snapshot: Snapshot, made: object) -> None:
        for r in made.reserve:  # type: ignore[attr-defined]
            assert r.start_ms <= dates.setdefault(r.request_id, r.start_ms)

    outcome = simulate(trace, uniform(fabrics, 8, 4), Policy(), exact, watch=watch)
    assert (outcome.broken, outcome.partial, outcome.cross_fabric) == (0, 0, 0)
    assert all(s.wait_ms >= 0 for s in outcome.jobs), "everybody starts in the end"


@SEARCH
@given(snapshots(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=25))
def test_the_kept_counts_are_what_a_recount_gives(snapshot: Snapshot, changes: list[tuple[int, int]]) -> None:
    index = FleetIndex.of(snapshot.nodes, snapshot.holds)
    made = plan(snapshot, DEBUG, index)
    assert dump_plan(made) == dump_plan(plan(snapshot))
    old = index
    for kind, which in changes:
        victim = snapshot.nodes[which % len(snapshot.nodes)]
        a_hold = snapshot.holds[which % len(snapshot.holds)] if snapshot.holds else None
        if kind == 0:
            index = index.apply([NodeChanged(replace(victim, state=NodeState.DRAINING, state_reason="drill"))])
        elif kind == 1:
            index = index.apply([NodeGone(victim.node_id)])
        elif kind == 2:
            index = index.apply([NodeChanged(victim)])
        elif kind == 3:
            index = index.apply([NodeChanged(replace(victim, network="net-x"))])
        elif kind == 4 and a_hold is not None:
            index = index.apply([HoldEnded(a_hold.holder_id)])
        elif kind == 5 and a_hold is not None:
            index = index.apply([HoldChanged(replace(a_hold, ends_ms=which * MINUTE))])
        index.recount()
    old.recount()     # the one that a plan may still be reading has not changed
    assert dump_plan(plan(snapshot, index=old)) == dump_plan(made)
