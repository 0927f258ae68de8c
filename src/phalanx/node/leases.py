"""The leases of this agent's containers (design rule 3): asks core/lease.py every second, renews them at the shims, and stops what must
stop. The shims hold them too: without an agent that renews them they stop by themselves."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.core.lease import FOREVER, NEVER, Crew, Decision, Lease, Limits
from phalanx.protocol import agent_pb2

from . import machine
from .peers import Peers
from .saying import say
from .spec import write_whole

if TYPE_CHECKING:
    from .container import Container

_TICK_SECONDS = 1.0
_WORTH_TELLING_MS = 1_000


class Leases:
    """`containers` is the agent's own table. `memory`: its folder, for what the next agent must know before it hears of the server."""

    def __init__(self, agent_id: str, boot_id: str, secret: str, containers: dict[tuple[int, int], Container], memory: Path) -> None:
        self.containers, self._memory = containers, memory
        self.lease = Lease(agent_id, Limits(outage_limit_ms=0))
        self._kept = self.lease.limits      # as the file has them, or no file
        self.peers = Peers(agent_id, boot_id, secret, machine.boottime_ms, lambda: self.lease.is_away(machine.boottime_ms()), self._heard)
        self._told: set[int] = set()        # assignments of which the server said where all ranks are
        self._answers_beats = True
        self._greet_seconds = 1.0

    # ---------------------------------------------------------------- what the agent learns

    def adopt(self) -> None:
        """What the earlier agent knew: the limits, when it reached the server (by the shims), and who has the other ranks."""
        if self._limits_file.exists():
            self.lease.limits = self._kept = Limits(**json.loads(self._limits_file.read_text()))
        self.lease.reached_ms = max((c.reached_ms for c in self.containers.values() if c.reached_ms), default=NEVER)
        for container in self.containers.values():
            crew = _crew_file(container)
            if crew.exists():
                self._take(container.spec.assignment, json.loads(crew.read_text()))
            else:
                self.lease.take(container.spec.assignment, self._crew_of_our_own(self._of(container.spec.assignment)))
            if container.until_ms:
                self.lease.allow(container.spec.assignment, container.until_ms)

    def welcomed(self, welcome: agent_pb2.Welcome, registered_ms: int) -> None:
        """The server answered what was registered then, and says the limits."""
        self._answers_beats = welcome.lease_ms > 0
        limits = Limits(welcome.lease_ms or Limits.lease_ms, welcome.outage_limit_ms, welcome.silent_ms or Limits.silent_ms)
        if why_not := self._keep(limits):       # a full disk keeps no agent from its server
            say(f"the limits could not be kept, which is tried again: {why_not}")
        self._greet_seconds = max(0.1, min(2.0, limits.silent_ms / 4000))
        self.lease.go_by(limits, registered_ms)
        self.look()     # the shims too, before our first heartbeat says that these limits hold here

    def _keep(self, limits: Limits) -> str:
        """For the next agent, which would go by older ones until it joins, maybe for longer than the server waits. Answers why not."""
        if limits != self._kept:
            try:
                write_whole(str(self._limits_file), json.dumps(vars(limits)))
            except OSError as error:
                return str(error)
            self._kept = limits
        return ""

    def answered(self, sent_ms: int) -> None:
        self.lease.server_answered(sent_ms)

    def connected(self) -> None:
        """Every second with a session: an older server answers no heartbeats, and its connection must do."""
        if not self._answers_beats:
            self.lease.server_answered(machine.boottime_ms())

    def placed(self, message: agent_pb2.Peers) -> None:
        """The server says where all ranks of an assignment are."""
        crew = {"size": message.size, "peers": [[peer.rank, peer.agent_id, peer.address] for peer in message.peers]}
        self._take(message.assignment, crew)
        for container in self._of(message.assignment):
            write_whole(str(_crew_file(container)), json.dumps(crew))

    def beat(self) -> agent_pb2.Heartbeat:
        return agent_pb2.Heartbeat(
            boottime_ms=machine.boottime_ms(), answered_ms=max(self.lease.reached_ms, 0), said_away_ms=max(self.lease.said_away_ms, 0))

    # ---------------------------------------------------------------- what follows

    async def watch(self) -> None:
        """For ever: renew, or stop."""
        greeting = asyncio.create_task(self._greet())
        try:
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                self._keep(self.lease.limits)
                self.look()
        finally:
            greeting.cancel()

    def look(self) -> None:
        now_ms = machine.boottime_ms()
        held: dict[int, list[Container]] = {}
        for container in self.containers.values():
            held.setdefault(container.spec.assignment, []).append(container)
        for assignment in self.lease.assignments() - held.keys():
            self.lease.give_up(assignment)
            self._told.discard(assignment)
        for assignment, containers in held.items():
            if assignment not in self._told:
                self.lease.take(assignment, self._crew_of_our_own(containers))
            decision = self.lease.decide(assignment, now_ms)
            for container in containers:
                if container.phase in ("prepared", "running"):
                    self._apply(container, decision, now_ms)

    def _apply(self, container: Container, decision: Decision, now_ms: int) -> None:
        if decision.stop:
            self._stop(container, decision.stop)
        elif decision.until_ms == FOREVER:
            if container.until_ms:
                container.lease(0, self.lease.reached_ms)
        elif decision.until_ms != NEVER:
            # A tenth of what is left is not worth a word: what a shim knows is at most so much too early.
            later_ms, left_ms = decision.until_ms - container.until_ms, decision.until_ms - now_ms
            if later_ms < 0 or later_ms >= max(_WORTH_TELLING_MS, left_ms // 10):
                container.lease(decision.until_ms, self.lease.reached_ms)

    def _stop(self, container: Container, why: str) -> None:
        if not container.fenced:
            container.fenced = True
            say(f"{container.spec.task_id} is stopped: {why}")
            container.stop(signal.SIGINT, container.spec.grace_ms, why)

    async def _greet(self) -> None:
        while True:
            self.peers.greet(sorted(self.lease.peers()))     # a simulated world replays, whatever the hash seed
            await asyncio.sleep(self._greet_seconds)

    def _heard(self, agent_id: str, sent_ms: int, away: bool) -> None:
        self.lease.peer_answered(agent_id, sent_ms, away, machine.boottime_ms())

    # ---------------------------------------------------------------- who has which ranks

    def _take(self, assignment: int, crew: dict[str, Any]) -> None:
        self._told.add(assignment)
        ranks: dict[str, set[int]] = {}
        for rank, agent_id, address in crew["peers"]:
            ranks.setdefault(agent_id, set()).add(rank)
            self.peers.know(agent_id, address)
        self.lease.take(assignment, Crew(crew["size"], {agent: frozenset(theirs) for agent, theirs in ranks.items()}))

    def _crew_of_our_own(self, own: list[Container]) -> Crew:
        """Nobody has said where the others are: what is not here is elsewhere."""
        return Crew(max(c.spec.size for c in own) or len(own), {self.lease.agent_id: frozenset(c.spec.rank for c in own)})

    def _of(self, assignment: int) -> list[Container]:
        return [container for container in self.containers.values() if container.spec.assignment == assignment]

    @property
    def _limits_file(self) -> Path:
        return self._memory / "limits.json"


def _crew_file(container: Container) -> Path:
    return Path(container.spec.folder) / "crew.json"
