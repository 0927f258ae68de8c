"""The named stories of the reference (scheduling.md 4.9): things that went wrong on other people's clusters."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from phalanx.model.plan import NodeState, Plan, Policy, Quota, Reason, ReasonCode, Snapshot, sentence
from phalanx.scheduler.backoff import requeue_at_ms
from phalanx.scheduler.fit import fabric_warning
from phalanx.scheduler.plan import plan
from phalanx.scheduler.simulation.faults import FaultModel
from phalanx.scheduler.simulation.run import simulate
from phalanx.scheduler.simulation.topology import uniform
from phalanx.scheduler.simulation.trace import Job
from tests.scheduler.builders import HOUR, MINUTE, apply, check, domains, gang, hold, nodes, reason_of, started


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sharing_anomaly_no_tenant_waits_longer_than_on_a_cluster_of_its_own(seed: int) -> None:
    """HiveD: tenants with quotas waited 1,000 minutes longer on a shared cluster than on a private one of their quota's size.

    On average, that is: the single longest wait may be longer than alone, since a tenant's small gangs borrow while its large one waits.
    """
    draw = random.Random(seed)
    jobs = []
    for tenant in ("ann", "ben"):
        at = 0
        for _ in range(60):
            at += draw.randrange(40) * MINUTE
            jobs.append(Job(len(jobs), at, draw.choice([1, 1, 2, 4, 8]), draw.randrange(5, 120) * MINUTE, tenant))
    jobs.sort(key=lambda j: (j.submit_ms, j.number))
    quotas = (Quota("ann", 8, "all", None), Quota("ben", 8, "all", None))
    together = simulate(jobs, uniform(1, 16), Policy(), quotas=quotas)
    assert together.evictions > 0, "something was lent, and taken back"
    for tenant in ("ann", "ben"):
        alone = simulate([j for j in jobs if j.workspace == tenant], uniform(1, 8), Policy())
        private = [s.wait_ms for s in alone.jobs]
        shared = [s.wait_ms for s in together.jobs if s.job.workspace == tenant]
        assert sum(shared) <= 1.1 * sum(private)


def test_548_preemptions_a_gang_that_crashes_at_once_does_not_empty_the_fleet_again_and_again() -> None:
    """Meta, RSC: one 1,024-GPU job was requeued 35 times and caused 548 preemptions."""
    fleet = nodes(16)
    small = tuple(gang(f"small-{i:02}", 2, predicted_ms=100 * HOUR) for i in range(8))
    snapshot = apply(Snapshot(0, fleet, pending=small), plan(Snapshot(0, fleet, pending=small)))
    evictions, had_others_stopped = 0, 0
    for attempt in range(1, 36):
        now = snapshot.now_ms + 10 * MINUTE
        again = requeue_at_ms(now, had_others_stopped)
        crasher = gang("crasher", 16, priority=5, attempt=attempt, evictions=had_others_stopped, not_before_ms=again)
        snapshot = replace(snapshot, now_ms=now, pending=(*(r for r in snapshot.pending if r.request_id != "crasher"), crasher))
        for _ in range(2):
            made = plan(snapshot)
            evictions += len(made.evict)
            had_others_stopped += bool(made.evict)
            stopped = tuple(r for r in small if r.request_id in {e.holder_id for e in made.evict})
            snapshot = apply(snapshot, made)
            snapshot = replace(snapshot, pending=snapshot.pending + stopped, now_ms=snapshot.now_ms + 6 * MINUTE)
        snapshot = replace(snapshot, holds=tuple(h for h in snapshot.holds if h.holder_id != "crasher"))     # it crashed
    assert 0 < evictions <= Policy().eviction_budget * len(small)


def test_a_gang_as_large_as_the_fabric_starts_by_its_first_promised_date_under_a_stream_of_small_ones() -> None:
    draw = random.Random(7)
    jobs = [Job(i, i * 3 * MINUTE, draw.choice([1, 2]), draw.randrange(5, 60) * MINUTE) for i in range(300)]
    jobs.append(Job(300, 100 * MINUTE, 16, 30 * MINUTE))
    jobs.sort(key=lambda j: (j.submit_ms, j.number))
    whole = f"job-{jobs.index(next(j for j in jobs if j.nodes == 16)):06}"
    first: list[int] = []
    begun: list[int] = []

    def watch(snapshot: Snapshot, made: Plan) -> None:
        first.extend(r.start_ms for r in made.reserve if r.request_id == whole)
        begun.extend(snapshot.now_ms for s in made.starts if s.request_id == whole)

    simulate(jobs, uniform(1, 16), Policy(), watch=watch)
    assert first, "it is told a date"
    assert begun[0] <= first[0]


def test_drain_while_reserved_the_reservation_moves_and_the_reason_says_why() -> None:
    early, late = nodes(4, "a", network="net-1"), nodes(4, "b", network="net-2")
    busy = (hold("cu-a", early, 1 * HOUR), hold("cu-b", late, 2 * HOUR))
    snapshot = Snapshot(0, early + late, busy, (gang("big", 4),))
    before = plan(snapshot)
    assert [(r.fabric.endswith("net-1"), r.start_ms) for r in before.reserve] == [(True, HOUR)]
    sick = replace(early[0], state=NodeState.DRAINING, state_reason="gpu-health")
    after = plan(replace(snapshot, nodes=(sick, *early[1:], *late), reservations=before.reserve))
    assert [(r.fabric.endswith("net-2"), r.start_ms) for r in after.reserve] == [(True, 2 * HOUR)]
    assert "1 draining (gpu-health)" in sentence(reason_of(after, "big"))
    assert reason_of(after, "big").earliest_start_ms == 2 * HOUR


def test_a_rack_fails_and_every_gang_on_it_comes_back_elsewhere() -> None:
    jobs = [Job(i, i * MINUTE, 1 + i % 4, HOUR) for i in range(40)]
    down: set[str] = set()

    def watch(snapshot: Snapshot, made: Plan) -> None:
        if 30 * MINUTE <= snapshot.now_ms < 30 * MINUTE + 4 * HOUR:
            down.update(n for s in made.starts for n in s.node_ids)

    fleet = uniform(2, 24, 8)
    outcome = simulate(jobs, fleet, Policy(), faults=FaultModel(rack_at_ms=30 * MINUTE, seed=3), watch=watch)
    assert all(s.wait_ms >= 0 for s in outcome.jobs)
    assert any(s.attempts > 1 for s in outcome.jobs), "somebody was hit"
    assert outcome.partial == 0
    assert len({(n.network, n.rack) for n in fleet if n.node_id not in down}) >= 1, "the dead rack was left alone"


def test_fabric_size_8_on_domains_of_18() -> None:
    """Two blocks find room in one domain of 18, and two nodes of each domain never do: told when the function is created."""
    fleet = domains(3, 18)
    request = gang("nvl", 16, fabric_size=8)
    snapshot = Snapshot(0, fleet, pending=(request,))
    made = plan(snapshot)
    check(snapshot, made)
    by_id = {n.node_id: n for n in fleet}
    assert len({by_id[n].fabric_id for n in made.starts[0].node_ids}) == 1
    assert fabric_warning(request, fleet) == (
        "fabric_size=8 leaves 2 of the 18 nodes of an NVLink domain unused; 2 or 3 or 6 or 9 or 18 would not"
    )
    assert fabric_warning(gang("six", 12, fabric_size=6), fleet) == ""


def test_blocks_that_find_no_domain_are_told_so_although_nodes_are_free() -> None:
    fleet = domains(3, 8)
    held = hold("cu-1", tuple(n.node_id for n in fleet if n.node_id.endswith("00")))
    reason: Reason = reason_of(plan(Snapshot(0, fleet, (held,), (gang("nvl", 16, fabric_size=8),))), "nvl")
    assert reason.code is ReasonCode.DOMAIN
    assert sentence(reason) == "waiting for 16 nodes with 8 H100 in blocks of fabric_size=8: room for 0 in whole blocks, 21 free in all"


def test_a_rented_node_is_bought_once_and_given_back_when_idle() -> None:
    """See test_cases for the gang that waits for it; here nobody does."""
    from phalanx.model.plan import Rented

    fleet = nodes(2)
    rented = tuple(Rented(n.node_id, 0) for n in fleet)
    assert plan(Snapshot(4 * MINUTE, fleet, rented=rented)).release == ()
    assert plan(Snapshot(6 * MINUTE, fleet, rented=rented)).release == ("node-00", "node-01")
    assert started(plan(Snapshot(6 * MINUTE, fleet, pending=(gang("g", 2),), rented=rented))) == ["g"]
