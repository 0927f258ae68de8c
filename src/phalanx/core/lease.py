"""Who may go on where contact is lost (design rule 3), decided by the same rules on both sides. Pure: times are told, in milliseconds.

An agent (`Lease`) counts from the moment it *sent* what was answered; the control plane (`Watch`) from the moment it *received* the last
word. So the control plane's limits end later, whatever messages are delayed by and however clocks are set: they need only run at one rate.

    agent:          server_answered, peer_answered, time  ->  decide: go on until …, or stop and why
    control plane:  joined, beat, time                    ->  overdue: this agent's ranks are lost, or not yet

A "side" is the ranks that can speak with each other. It is the majority with more than half of a gang's ranks, or with half of them and
rank 0. Half of them and rank 0 count only where the other half, as last heard, had lost the control plane too: a node that is cut off
alone would otherwise keep a gang of two for the whole outage limit while everybody else waits for it (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NEVER = -(1 << 62)
FOREVER = 1 << 62
MARGIN_MS = 10_000      # beyond an agent's own limit, before the control plane takes a node for lost


@dataclass(frozen=True)
class Limits:
    """`silent_ms`: without a word for this long, a side has lost the other. It must stay below MARGIN_MS, and well below the lease."""

    lease_ms: int = 30_000
    outage_limit_ms: int = 15 * 60_000      # 0: none
    silent_ms: int = 8_000


def longer_of(one: Limits, other: Limits) -> Limits:
    """What to wait for where an agent may go by either: the longer times, and the shorter silence after which it says that it lost us."""
    limited = one.outage_limit_ms and other.outage_limit_ms
    return Limits(
        max(one.lease_ms, other.lease_ms), max(one.outage_limit_ms, other.outage_limit_ms) if limited else 0,
        min(one.silent_ms, other.silent_ms),
    )  # fmt: skip


@dataclass(frozen=True)
class Crew:
    """On which agents the ranks of one assignment are. Ranks that no agent has (not known) count as on the other side."""

    size: int
    ranks: Mapping[str, frozenset[int]]     # by agent id


def is_even_half(ranks: frozenset[int], size: int) -> bool:
    return 2 * len(ranks) == size and 0 in ranks


# ---------------------------------------------------------------- on the agent


@dataclass(frozen=True)
class Decision:
    """Go on, until `until_ms` if nothing more is heard; or stop, and why."""

    until_ms: int
    stop: str = ""


@dataclass
class _Peer:
    """`heard_ms`: when we sent what its newest word answers. `away`: whether it said then that it had lost the control plane."""

    heard_ms: int = NEVER
    away: bool = False


@dataclass
class _Held:
    crew: Crew
    carried_ms: int = NEVER     # until then a majority that had lost the control plane was seen
    allowed_ms: int = NEVER     # until then an earlier agent might let it run


class Lease:
    """One agent's right to let its ranks run. `reached_ms`: what an earlier agent of this boot knew of the control plane."""

    def __init__(self, agent_id: str, limits: Limits, reached_ms: int = NEVER) -> None:
        self.agent_id, self.limits = agent_id, limits
        self.reached_ms = reached_ms    # when we sent what the control plane answered last
        self.said_away_ms = NEVER       # when we last told peers that we had lost the control plane
        self._peers: dict[str, _Peer] = {}
        self._held: dict[int, _Held] = {}

    def take(self, assignment: int, crew: Crew) -> None:
        """This agent has ranks of that assignment, or where its ranks are has changed."""
        self._held.setdefault(assignment, _Held(crew)).crew = crew

    def go_by(self, limits: Limits, sent_ms: int) -> None:
        """The control plane answered what we sent then, with its limits. What an earlier agent was allowed is over: it may have been by
        longer ones."""
        self.limits = limits
        for held in self._held.values():
            held.allowed_ms = NEVER
        self.server_answered(sent_ms)

    def allow(self, assignment: int, until_ms: int) -> None:
        """An earlier agent of this boot might let it run until then: it knew more than this one does yet."""
        self._held[assignment].allowed_ms = max(self._held[assignment].allowed_ms, until_ms)

    def give_up(self, assignment: int) -> None:
        self._held.pop(assignment, None)
        for gone in self._peers.keys() - self.peers():
            del self._peers[gone]

    def assignments(self) -> set[int]:
        return set(self._held)

    def peers(self) -> set[str]:
        """The agents to exchange heartbeats with."""
        return {agent for held in self._held.values() for agent in held.crew.ranks} - {self.agent_id}

    def server_answered(self, sent_ms: int) -> None:
        """The control plane has what we sent then."""
        self.reached_ms = max(self.reached_ms, sent_ms)

    def peer_answered(self, agent_id: str, sent_ms: int, away: bool, now_ms: int) -> None:
        """A peer has what we sent then, and says whether it has lost the control plane. Older words than the newest change nothing."""
        peer = self._peers.setdefault(agent_id, _Peer())
        if sent_ms < peer.heard_ms:
            return
        peer.heard_ms, peer.away = sent_ms, away
        for held in self._held.values():
            if agent_id in held.crew.ranks:
                self._look(held, now_ms)

    def is_away(self, now_ms: int) -> bool:
        """Has this agent lost the control plane? What it tells its peers: they may go on because of it, so it is remembered."""
        away = now_ms - self.reached_ms >= self.limits.silent_ms
        if away:
            self.said_away_ms = now_ms
        return away

    def decide(self, assignment: int, now_ms: int) -> Decision:
        """For the ranks of one assignment on this agent. An agent that never reached the control plane has nothing to go by: `until_ms`
        is NEVER then, and what an earlier agent was allowed holds."""
        limits, held = self.limits, self._held[assignment]
        if not limits.outage_limit_ms:
            return Decision(FOREVER)
        if self.reached_ms == NEVER:
            return Decision(NEVER)
        self._look(held, now_ms)
        until_ms = self._until(held)
        return Decision(until_ms, self._why(held, now_ms) if now_ms >= until_ms else "")

    def _until(self, held: _Held) -> int:
        limits = self.limits
        outage_ms = self.reached_ms + limits.outage_limit_ms
        if len(held.crew.ranks.get(self.agent_id, ())) == held.crew.size:       # nobody else to ask
            return max(outage_ms, held.allowed_ms)
        return max(self.reached_ms + limits.lease_ms, min(held.carried_ms + limits.lease_ms, outage_ms), held.allowed_ms)

    def _look(self, held: _Held, now_ms: int) -> None:
        """Is this the majority side now, and has all of it lost the control plane? Not asked once the time is over: the other side counts
        on it."""
        away = self.limits.silent_ms <= now_ms - self.reached_ms and now_ms < self._until(held)
        reached = [(agent, self._peers[agent]) for agent in held.crew.ranks if agent in self._peers and self._is_reached(agent, now_ms)]
        if not away or any(not peer.away for _, peer in reached):
            return
        sides = [(now_ms, held.crew.ranks.get(self.agent_id, frozenset()))]
        sides += [(peer.heard_ms, held.crew.ranks[agent]) for agent, peer in reached]
        ranks: frozenset[int] = frozenset()
        for heard_ms, more in sorted(sides, key=lambda side: -side[0]):
            ranks |= more
            if 2 * len(ranks) > held.crew.size or is_even_half(ranks, held.crew.size) and self._others_lost_it(held, ranks):
                held.carried_ms = max(held.carried_ms, heard_ms)
                return

    def _is_reached(self, agent: str, now_ms: int) -> bool:
        return now_ms - self._peers[agent].heard_ms < self.limits.silent_ms

    def _others_lost_it(self, held: _Held, side: frozenset[int]) -> bool:
        """Had every agent beyond this side lost the control plane, by its last word since we lost it ourselves?"""
        beyond = [self._peers.get(agent, _Peer()) for agent, ranks in held.crew.ranks.items() if not ranks <= side]
        known = sum(len(ranks) for ranks in held.crew.ranks.values())
        return known == held.crew.size and all(peer.away and peer.heard_ms >= self.reached_ms for peer in beyond)

    def _why(self, held: _Held, now_ms: int) -> str:
        silent = f"no word from the control plane for {(now_ms - self.reached_ms) / 1000:.0f} s"
        if now_ms - self.reached_ms >= self.limits.outage_limit_ms:
            return f"{silent}: over the outage limit of {self.limits.outage_limit_ms / 1000:g} s"
        reached = [agent for agent in held.crew.ranks if agent in self._peers and self._is_reached(agent, now_ms)]
        lease = f"over the lease of {self.limits.lease_ms / 1000:g} s"
        if any(not self._peers[agent].away for agent in reached):
            return f"{silent}, while another agent of the gang reaches it: {lease}"
        ranks = sum(len(held.crew.ranks[agent]) for agent in (*reached, self.agent_id) if agent in held.crew.ranks)
        return f"{silent}, and only {ranks} of {held.crew.size} ranks are on nodes that reach each other: {lease}"


# ---------------------------------------------------------------- on the control plane


@dataclass
class _Beat:
    received_ms: int
    sent_after_ms: int      # a time before it was sent: when we had received the beat whose answer its sender knew


@dataclass
class _Agent:
    """All by the control plane's own clock."""

    heard_ms: int                   # the last word was received
    fresh_ms: int = NEVER           # a time before the last word was sent
    away_ms: int = NEVER            # it may have told peers, up to then, that it had lost the control plane
    reached_ms: int = NEVER         # a time before it sent the last word that it knows to be answered
    beats: dict[int, _Beat] = field(default_factory=dict)   # by their sender's time


@dataclass(frozen=True)
class Overdue:
    """Not heard of for `silent_ms`, which is over `limit_ms` (its lease, or the outage limit), the margin and its grace."""

    silent_ms: int
    limit_ms: int


class Watch:
    """What the control plane knows of its agents' leases. `start_ms`: its own return; what was before counts for nobody.

    `limits`: what it tells agents that join. `granted`, by agent: what each may go by, which is what it was told before until it is known
    to have heard of these. It is there to be kept over a restart, each entry before its agent is answered.
    `now_ms` is time in which the control plane could have heard something: it stands still while the process does not run.
    """

    def __init__(self, limits: Limits, start_ms: int = 0, granted: Mapping[str, Limits] | None = None) -> None:
        self.limits, self._start_ms = limits, start_ms
        self.granted = dict(granted or {})
        self._agents: dict[str, _Agent] = {}

    def joined(self, agent_id: str, sent_ms: int, now_ms: int) -> None:
        """It registered, and will be told the limits. Until now it may have told anybody that it had lost us."""
        agent = self._agents[agent_id] = _Agent(heard_ms=now_ms, away_ms=now_ms)
        agent.beats[sent_ms] = _Beat(now_ms, NEVER)
        self.granted[agent_id] = longer_of(self._goes_by(agent_id), self.limits)

    def beat(self, agent_id: str, sent_ms: int, answered_ms: int, said_away_ms: int, now_ms: int) -> None:
        """A heartbeat, by the sender's clock: sent then, knowing that what it sent at `answered_ms` was answered, and having last told
        its peers at `said_away_ms` (0: never) that it had lost us."""
        agent = self._agents.setdefault(agent_id, _Agent(heard_ms=now_ms, away_ms=now_ms))
        agent.heard_ms = now_ms
        if said_away_ms:
            agent.away_ms = max(agent.away_ms, now_ms - max(0, sent_ms - said_away_ms))
        answered = agent.beats.get(answered_ms)
        if answered is not None:
            agent.fresh_ms = max(agent.fresh_ms, answered.received_ms)
            agent.reached_ms = max(agent.reached_ms, answered.sent_after_ms)
            self.granted[agent_id] = self.limits    # the first of our answers said them
        agent.beats = {sent: beat for sent, beat in agent.beats.items() if sent >= answered_ms}
        agent.beats[sent_ms] = _Beat(now_ms, agent.fresh_ms)

    def is_silent(self, agent_id: str, now_ms: int) -> bool:
        """Were its last heartbeats missed? No reason to stop anything, but to start nothing there."""
        return now_ms - self._heard_ms(agent_id) >= self.limits.silent_ms

    def overdue(self, crew: Crew, agent_id: str, grace_ms: int, now_ms: int) -> Overdue | None:
        """Must this agent's ranks of a gang have stopped by now? `grace_ms` is what they get between interrupt and SIGKILL."""
        limits, heard_ms = self._goes_by(agent_id), self._heard_ms(agent_id)
        if not limits.outage_limit_ms or now_ms - heard_ms < min(limits.lease_ms, limits.outage_limit_ms):
            return None
        carried_ms = min(heard_ms + limits.outage_limit_ms, self._carried_until(crew, now_ms) + limits.lease_ms)
        ends_ms = max(heard_ms + limits.lease_ms, carried_ms)
        if now_ms < ends_ms + MARGIN_MS + grace_ms:
            return None
        return Overdue(now_ms - heard_ms, ends_ms - heard_ms)

    def _goes_by(self, agent_id: str) -> Limits:
        return self.granted.get(agent_id, self.limits)

    def _carried_until(self, crew: Crew, now_ms: int) -> int:
        """Until when a side of this gang may have carried on without us: the latest moment up to which enough agents may have said that
        they had lost us."""
        sides = sorted(((self._may_be_away_until(agent, now_ms), agent) for agent in crew.ranks), reverse=True)
        ranks: frozenset[int] = frozenset()
        for index, (until_ms, agent) in enumerate(sides):
            ranks |= crew.ranks[agent]
            if 2 * len(ranks) > crew.size:
                return until_ms
            if is_even_half(ranks, crew.size) and self._may_know_others_away(sides[: index + 1], sides[index + 1 :]):
                return until_ms
        return NEVER

    def _may_be_away_until(self, agent_id: str, now_ms: int) -> int:
        agent = self._agents.get(agent_id)
        if agent is None or now_ms - agent.fresh_ms >= self._goes_by(agent_id).silent_ms:
            return now_ms
        return agent.away_ms

    def _may_know_others_away(self, side: Iterable[tuple[int, str]], others: Iterable[tuple[int, str]]) -> bool:
        """May all others have said that they had lost us after somebody of this side lost us?"""
        since_ms = min(self._agents[agent].reached_ms if agent in self._agents else NEVER for _, agent in side)
        return all(until_ms >= since_ms for until_ms, _ in others)

    def _heard_ms(self, agent_id: str) -> int:
        agent = self._agents.get(agent_id)
        return agent.heard_ms if agent is not None else self._start_ms
