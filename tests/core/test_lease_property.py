"""A gang's agents and the control plane on a bad network: whatever is cut, delayed, lost or started again, no rank runs after it was
taken for lost, and never do two sides of a split go on."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, note, settings
from hypothesis import strategies as st

from phalanx.core.lease import FOREVER, MARGIN_MS, NEVER, Crew, Lease, Limits, Watch

LIMITS = Limits(lease_ms=30_000, outage_limit_ms=180_000, silent_ms=8_000)      # a short outage limit: more of everything in less time
OTHER_LIMITS = (    # what the fleet's owner may have set when the control plane starts again
    LIMITS, Limits(6_000, 20_000, 2_000), Limits(60_000, 400_000, 8_000), Limits(30_000, 40_000, 8_000), Limits(12_000, 0, 4_000),
)  # fmt: skip
BEAT_MS = 2_000
TICK_MS = 1_000
GRACE_MS = 3_000
SERVER = "server"


@dataclass
class Agent:
    """Its own clock, what its shim may do, and whether the process is there."""

    name: str
    offset_ms: int
    rate: float
    lease: Lease
    runs_until: int = FOREVER       # true time: its ranks are gone from then on
    until_ms: int = NEVER           # what the shim was told, by its own clock
    alive: bool = True
    connected: bool = False
    answers: dict[str, int] = field(default_factory=dict)       # peer -> the newest of its sendings that we have


class World:
    """True time in milliseconds. A link is cut in one direction or both; messages take as long as the network of the moment makes them."""

    def __init__(self, seed: int, ranks: list[int]) -> None:
        """`ranks[rank]` is the number of the agent that has it."""
        self.random = random.Random(seed)
        names = [f"ag-{number}" for number in range(max(ranks) + 1)]
        self.crew = Crew(len(ranks), {
            name: frozenset(r for r, number in enumerate(ranks) if names[number] == name) for name in names if number_used(name, ranks)})
        self.now = 0
        self.cut: set[tuple[str, str]] = set()
        self.delay_ms = 50
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.limits = LIMITS
        self.watch = Watch(LIMITS)
        self.server_up, self.server_start = True, 0
        self.frozen_until = 0       # the control plane's process stands still, and so does its patience
        self.observed = 0
        self.lost: dict[str, int] = {}
        self.agents = {}
        for name in self.crew.ranks:
            agent = Agent(name, self.random.randrange(10**9), 1 + self.random.uniform(-2e-4, 2e-4), Lease(name, LIMITS))
            agent.lease.take(7, self.crew)
            self.agents[name] = agent
            self.at(self.random.randrange(BEAT_MS), lambda a=agent: self.beat(a))
        self.at(0, self.tick)

    # ------------------------------------------------------------ machinery

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + delay_ms, next(self.order), action))

    def send(self, source: str, target: str, action: Callable[[], None]) -> None:
        if (source, target) in self.cut or self.random.random() < 0.02 and target != SERVER and source != SERVER:
            return
        self.at(self.random.randrange(1, self.delay_ms + 1), lambda: (source, target) in self.cut or action())

    def run(self, until_ms: int) -> None:
        while self.queue and self.queue[0][0] <= until_ms:
            self.now, _, action = heapq.heappop(self.queue)
            action()
        self.now = until_ms

    def clock(self, agent: Agent) -> int:
        return int(self.now * agent.rate) + agent.offset_ms

    # ------------------------------------------------------------ who does what

    def beat(self, agent: Agent) -> None:
        self.at(BEAT_MS, lambda: self.beat(agent))
        if not agent.alive:
            return
        sent = self.clock(agent)
        if not agent.connected:
            self.send(agent.name, SERVER, lambda: self.register(agent, sent))
        else:
            said = max(agent.lease.said_away_ms, 0)
            reached = agent.lease.reached_ms
            self.send(agent.name, SERVER, lambda: self.heard(agent, sent, reached, said))
        for peer in sorted(agent.lease.peers()):
            self.greet(agent, self.agents[peer], sent)

    def greet(self, agent: Agent, peer: Agent, sent: int) -> None:
        echo, away = agent.answers.get(peer.name), agent.lease.is_away(sent)
        self.send(agent.name, peer.name, lambda: self.peer(peer, agent, sent, echo, away))

    def register(self, agent: Agent, sent: int) -> None:
        if self.now < self.frozen_until:
            self.at(self.frozen_until - self.now, lambda: self.register(agent, sent))
        elif self.server_up:
            self.watch.joined(agent.name, sent, self.observed)
            life = self.server_start
            self.send(SERVER, agent.name, lambda: self.welcomed(agent, sent, life))

    def heard(self, agent: Agent, sent: int, reached: int, said: int) -> None:
        if self.now < self.frozen_until:
            self.at(self.frozen_until - self.now, lambda: self.heard(agent, sent, reached, said))
        elif self.server_up:
            self.watch.beat(agent.name, sent, reached, said, self.observed)
            life = self.server_start
            self.send(SERVER, agent.name, lambda: self.answered(agent, sent, life))

    def welcomed(self, agent: Agent, sent: int, life: int) -> None:
        if agent.alive and self.server_up and life == self.server_start:
            agent.lease.go_by(self.limits, sent)
            agent.until_ms = agent.lease.decide(7, self.clock(agent)).until_ms
            self.answered(agent, sent, life)

    def answered(self, agent: Agent, sent: int, life: int) -> None:
        if agent.alive and self.server_up and life == self.server_start:      # a connection does not outlive either side
            agent.connected = True
            agent.lease.server_answered(sent)

    def peer(self, me: Agent, other: Agent, sent: int, echo: int | None, away: bool) -> None:
        if not me.alive:
            return
        me.answers[other.name] = max(sent, me.answers.get(other.name, NEVER))
        if echo is not None:
            me.lease.peer_answered(other.name, echo, away, self.clock(me))

    def tick(self) -> None:
        self.at(TICK_MS, self.tick)
        for agent in self.agents.values():
            self.enforce(agent)
        if not self.server_up or self.now < self.frozen_until:
            return
        self.observed += TICK_MS
        for name in self.crew.ranks:
            if name not in self.lost and self.watch.overdue(self.crew, name, GRACE_MS, self.observed):
                self.lost[name] = self.now
                assert self.agents[name].runs_until <= self.now, f"{name} was taken for lost at {self.now} and runs"

    def enforce(self, agent: Agent) -> None:
        now = self.clock(agent)
        if agent.runs_until != FOREVER:
            return
        if agent.alive:
            decision = agent.lease.decide(7, now)
            agent.until_ms = max(agent.until_ms, decision.until_ms)
        if agent.until_ms != NEVER and now >= agent.until_ms:
            agent.runs_until = self.now + GRACE_MS + 1000

    # ------------------------------------------------------------ faults

    def restart_server(self, down_ms: int, limits: Limits = LIMITS) -> None:
        self.server_up = False
        for agent in self.agents.values():
            agent.connected = False

        def back() -> None:
            self.server_up, self.server_start, self.observed = True, self.now, 0
            self.limits = limits
            self.watch = Watch(limits, granted=self.watch.granted)

        self.at(down_ms, back)

    def restart_agent(self, agent: Agent, down_ms: int) -> None:
        agent.alive = agent.connected = False

        def back() -> None:
            agent.alive = True
            agent.lease = Lease(agent.name, agent.lease.limits, agent.lease.reached_ms)       # the shims know it
            agent.lease.take(7, self.crew)
            agent.lease.allow(7, agent.until_ms)
            agent.answers.clear()

        self.at(down_ms, back)

    def fault(self) -> None:
        names = [*self.agents, SERVER]
        kind = self.random.choice(["cut", "cut", "split", "one way", "deaf", "back", "back", "heal", "delay", "server", "agent", "freeze"])
        if kind == "cut":
            one = self.random.choice(names)
            self.cut |= {pair for other in names for pair in ((one, other), (other, one))}
        elif kind == "split":
            left = {name for name in names if self.random.random() < 0.5}
            self.cut |= {(a, b) for a in names for b in names if (a in left) != (b in left)}
        elif kind == "one way":
            one, other = self.random.sample(names, 2)
            self.cut.add((one, other))
        elif kind == "deaf":        # the control plane hears, and is not heard
            self.cut |= {(SERVER, name) for name in self.agents if self.random.random() < 0.7}
        elif kind == "back":        # one of them reaches the control plane again, whomever else
            one = self.random.choice(list(self.agents))
            self.cut -= {(one, SERVER), (SERVER, one)}
        elif kind == "heal":
            self.cut.clear()
        elif kind == "delay":
            self.delay_ms = self.random.choice([1, 50, 2_000, 7_000, 20_000])
        elif kind == "server":
            self.restart_server(self.random.choice([500, 5_000, 60_000, 170_000]), self.random.choice(OTHER_LIMITS))
        elif kind == "agent":
            self.restart_agent(self.random.choice(list(self.agents.values())), self.random.choice([500, 5_000, 60_000]))
        else:
            self.frozen_until = self.now + self.random.choice([5_000, 60_000])

    def running(self) -> set[str]:
        return {name for name, agent in self.agents.items() if agent.runs_until > self.now}


def number_used(name: str, ranks: list[int]) -> bool:
    return int(name.removeprefix("ag-")) in ranks


PLACES = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), PLACES, st.integers(1, 12))
def test_no_rank_runs_after_it_was_taken_for_lost(seed: int, ranks: list[int], faults: int) -> None:
    note(f"seed {seed}")
    world = World(seed, ranks)
    world.run(20_000)
    for _ in range(faults):
        world.fault()
        world.run(world.now + world.random.choice([500, 5_000, 12_000, 29_000, 60_000]))
    world.run(world.now + 400_000)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), PLACES, st.integers(0, 40_000))
def test_never_do_two_sides_of_a_split_go_on(seed: int, ranks: list[int], between_ms: int) -> None:
    """The control plane goes and the network breaks in two, in any order and distance."""
    note(f"seed {seed}")
    world = World(seed, ranks)
    world.run(20_000)
    left = {name for name in world.agents if world.random.random() < 0.5}
    halves = {(a, b) for a in world.agents for b in world.agents if (a in left) != (b in left)}
    no_server = {pair for name in world.agents for pair in ((name, SERVER), (SERVER, name))}
    for cut in world.random.sample([halves, no_server], 2):
        world.cut |= cut
        world.run(world.now + between_ms)
    world.run(world.now + LIMITS.lease_ms + 2 * LIMITS.silent_ms + GRACE_MS)
    assert not (world.running() & left and world.running() - left), f"both sides go on: {world.running()}"
    world.run(world.now + LIMITS.outage_limit_ms + GRACE_MS)
    assert not world.running()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), PLACES)
def test_a_control_plane_that_is_away_costs_no_rank(seed: int, ranks: list[int]) -> None:
    """Its agents reach each other: all go on, and are all still there when it is back within the limit."""
    note(f"seed {seed}")
    world = World(seed, ranks)
    world.run(20_000)
    world.restart_server(LIMITS.outage_limit_ms - 20_000)
    world.run(world.now + 2 * LIMITS.outage_limit_ms)
    assert world.running() == set(world.agents)
    assert not world.lost


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_one_node_that_is_cut_off_is_soon_lost_and_the_others_go_on(seed: int, nodes: int) -> None:
    note(f"seed {seed}")
    world = World(seed, list(range(nodes)))
    world.run(20_000)
    one = world.random.choice(sorted(world.agents))
    world.cut |= {pair for other in (*world.agents, SERVER) for pair in ((one, other), (other, one))}
    world.run(world.now + LIMITS.lease_ms + MARGIN_MS + GRACE_MS + 5_000)
    assert set(world.lost) == {one}
    world.run(world.now + 2 * LIMITS.outage_limit_ms)
    assert world.running() == set(world.agents) - {one}
