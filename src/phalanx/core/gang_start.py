"""How a gang comes up: prepare on every node, start all, and the two barriers (design rules 1 and 2)."""

from __future__ import annotations

from phalanx.core import events as ev
from phalanx.core.gang_end import fail
from phalanx.core.gang_records import GangRecords
from phalanx.model.cluster import Cause, Failure, MemberState, Phase

RING_ABOVE = 16   # pairwise reachability up to here, in a ring above (design rule 2)


def placed(gang: GangRecords) -> list[ev.Instruction]:
    prepare: list[ev.Instruction] = [ev.Prepare(member.rank) for member in gang.members]
    return prepare + _timer("prepare", gang.policy.prepare_timeout_ms)


def prepared(gang: GangRecords, event: ev.Prepared) -> list[ev.Instruction]:
    """All prepared: committed, and all are started."""
    member = gang.members[event.rank]
    if member.state != MemberState.PREPARING:
        return []
    member.ipv6, member.ipv4, member.http_address = event.ipv6, event.ipv4, event.http_address
    gang.move(member, MemberState.PREPARED)
    if gang.assignment.phase != Phase.PREPARING or any(m.state != MemberState.PREPARED for m in gang.members):
        return []
    gang.phase(Phase.STARTING)
    instructions: list[ev.Instruction] = []
    for member in gang.members:
        gang.move(member, MemberState.STARTING)
        instructions.append(ev.Start(member.rank))
    # Networks stand since Prepare, so peers can be checked while the containers start.
    instructions += [ev.CheckPeers(m.rank, peers_of(gang, m.rank)) for m in gang.members if gang.assignment.size > 1]
    return instructions + _timer("hello", gang.policy.hello_timeout_ms)


def refused(gang: GangRecords, event: ev.PrepareRefused, now_ms: int) -> list[ev.Instruction]:
    failure = Failure(Cause.REFUSED, event.rank, now_ms, event.sentence, user_fault=event.user_fault)
    member = gang.members[event.rank]
    if member.state != MemberState.PREPARING:
        return []
    member.sentence = event.sentence
    gang.move(member, MemberState.EXITED)
    return fail(gang, failure, now_ms)


def peers_of(gang: GangRecords, rank: int) -> tuple[str, ...]:
    """The addresses that a rank must reach."""
    size = gang.assignment.size
    peers = [r for r in range(size) if r != rank] if size <= RING_ABOVE else [(rank + 1) % size]
    return tuple(address for r in peers for address in (gang.members[r].ipv6, gang.members[r].ipv4) if address)


def peers_reached(gang: GangRecords, event: ev.PeersReached, now_ms: int) -> list[ev.Instruction]:
    member = gang.members[event.rank]
    if gang.assignment.phase != Phase.STARTING or member.reached:
        return []
    if event.unreachable:
        addresses = ", ".join(event.unreachable)
        sentence = f"rank {event.rank} on node {member.node_id} can't reach {addresses}: the nodes' network does not connect them"
        return fail(gang, Failure(Cause.NODE, event.rank, now_ms, sentence, user_fault=False), now_ms)
    member.reached = True
    gang.touch(member)
    return _first_barrier(gang, now_ms)


def hello(gang: GangRecords, rank: int, now_ms: int) -> list[ev.Instruction]:
    member = gang.members[rank]
    if member.state != MemberState.STARTING or gang.assignment.phase != Phase.STARTING:
        return []
    gang.move(member, MemberState.HELLO)
    return _first_barrier(gang, now_ms)


def _first_barrier(gang: GangRecords, now_ms: int) -> list[ev.Instruction]:
    reached = gang.assignment.size == 1 or all(m.reached for m in gang.members)
    if not reached or any(m.state != MemberState.HELLO for m in gang.members):
        return []
    gang.phase(Phase.RUNNING)
    gang.assignment.running_ms = now_ms
    for member in gang.members:
        member.started_ms = now_ms
        gang.move(member, MemberState.IMPORTING)
    gang.assignment.idle_since_ms = now_ms      # until an input comes: the one it was started for may be gone
    return [ev.AnswerHellos(), ev.BecameIdle(), *_timer("startup", gang.assignment.startup_timeout_ms)]


def cluster_hello(gang: GangRecords, rank: int) -> list[ev.Instruction]:
    member = gang.members[rank]
    if member.state != MemberState.IMPORTING:
        return []
    gang.move(member, MemberState.READY)
    return [ev.AnswerClusterHellos()] if all(m.state == MemberState.READY for m in gang.members) else []


def asks(gang: GangRecords, rank: int, now_ms: int) -> list[ev.Instruction]:
    """A rank's first question for inputs: it is through import and @enter."""
    member = gang.members[rank]
    came_through: list[ev.Instruction] = []
    if not member.asked:
        member.asked = True
        gang.touch(member)
        if all(m.asked for m in gang.members):
            gang.assignment.up_ms = now_ms
            gang.touch(gang.assignment)
            came_through = [ev.CameThrough()]
    if member.state != MemberState.IMPORTING or gang.assignment.clustered:
        return came_through
    gang.move(member, MemberState.READY)
    return [*came_through, ev.BecameIdle()] if not gang.open else came_through


def prepare_over(gang: GangRecords, now_ms: int) -> list[ev.Instruction]:
    """Nodes that are still pulling and preparing when the fleet's time for it is over: each of them is blamed."""
    late = [member.rank for member in gang.members if member.state == MemberState.PREPARING]
    if gang.assignment.phase != Phase.PREPARING or not late:
        return []
    return _too_late(gang, late, "was not prepared", gang.policy.prepare_timeout_ms, now_ms)


def hello_over(gang: GangRecords, now_ms: int) -> list[ev.Instruction]:
    """Containers that start and never say hello, or whose network is never checked."""
    if gang.assignment.phase != Phase.STARTING:
        return []
    silent = [member.rank for member in gang.members if member.state == MemberState.STARTING]
    if silent:
        return _too_late(gang, silent, "was started and did not say hello", gang.policy.hello_timeout_ms, now_ms)
    unchecked = [member.rank for member in gang.members if not member.reached]
    return _too_late(gang, unchecked, "did not report whether it reaches the others", gang.policy.hello_timeout_ms, now_ms)


def _too_late(gang: GangRecords, ranks: list[int], what: str, limit_ms: int, now_ms: int) -> list[ev.Instruction]:
    failures = [
        Failure(Cause.REFUSED, rank, now_ms, f"{gang.name(rank)} {what} within {limit_ms / 1000:g} s", user_fault=False) for rank in ranks
    ]
    return fail(gang, failures[0], now_ms, *failures[1:])


def _timer(name: str, delay_ms: int) -> list[ev.Instruction]:
    return [ev.SetTimer(name, delay_ms)] if delay_ms else []


def startup_over(gang: GangRecords, now_ms: int) -> list[ev.Instruction]:
    """The time for import and @enter is over."""
    if gang.assignment.phase != Phase.RUNNING:
        return []
    beginning = [member for member in gang.members if gang.is_beginning(member.rank)]
    if not beginning:
        return []
    late = min(beginning, key=lambda member: member.state != MemberState.IMPORTING).rank    # others may only wait for its hello
    seconds = gang.assignment.startup_timeout_ms / 1000
    sentence = f"import and @enter took longer than the startup timeout of {seconds:g} s{gang.on(late)}"
    return fail(gang, Failure(Cause.TIMEOUT, late, now_ms, sentence), now_ms)
