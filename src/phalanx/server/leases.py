"""Agents that are not heard of (design rule 3): their nodes take no work at once, and are lost when their ranks must have stopped.

A node is lost when the engine says that it is dead, or when the limit that applies to its agent (core/lease.py), the margin and the
function's grace have passed. An agent that comes back before has its ranks; one that confirms their end has ended them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from phalanx.core import events as ev
from phalanx.core.gang import Gang
from phalanx.core.lease import MARGIN_MS, Crew, Limits, Overdue, Watch
from phalanx.model.cluster import Member, MemberState
from phalanx.model.lease import GrantedLimits
from phalanx.model.node import NodeRecord
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.leases")

TICK_MS = 1_000
_MOST_MS = 2 * TICK_MS          # of one tick: what is longer was our own absence, and is charged to nobody
_SILENT_MS = 8_000


class Leases:
    """Feeds core/lease.py's Watch, and acts on what it says."""

    def __init__(self, server: Server) -> None:
        self._server = server
        lease_ms = server.config.lease_ms
        self.limits = Limits(lease_ms, server.config.outage_limit_ms, min(_SILENT_MS, lease_ms // 3))
        self.heartbeat_ms = self.limits.silent_ms // 4
        granted = server.world[GrantedLimits].values()
        self._watch = Watch(self.limits, granted={g.agent_id: Limits(g.lease_ms, g.outage_limit_ms, g.silent_ms) for g in granted})
        self.patience_ms = 0       # time in which this process could have heard of somebody, since its start
        self._looked_ms = 0
        self._silent: set[str] = set()

    def start(self) -> None:
        self._looked_ms = self._server.clock.elapsed_ms()
        self._server.act(self._forget)
        self._again()

    # ------------------------------------------------------------ what agents say

    async def joined(self, agent_id: str, sent_ms: int) -> None:
        """An agent registers. It may be answered when this is over: what it may go by then is on disk."""
        self._watch.joined(agent_id, sent_ms, self._observe())
        self._silent.discard(agent_id)
        if self._is_news(agent_id):
            await self._server.act(lambda unit: self._keep(unit, agent_id))

    def beat(self, agent_id: str, sent_ms: int, answered_ms: int, said_away_ms: int) -> None:
        self._watch.beat(agent_id, sent_ms, answered_ms, said_away_ms, self._observe())
        if self._is_news(agent_id):
            self._server.act(lambda unit: self._keep(unit, agent_id))
        if agent_id in self._silent:
            self._silent.discard(agent_id)
            LOG.info("agent %s is heard of again", agent_id)
            self._server.planning.fleet.agents_changed({agent_id})
            self._server.planning.soon()

    def is_silent(self, agent_id: str) -> bool:
        """Did its last heartbeats not come? Its nodes take no work then; what runs there goes on."""
        return agent_id in self._silent

    # ------------------------------------------------------------ what follows

    def node_is_dead(self, unit: Unit, node_id: str, how: str) -> None:
        """For engines, which know for sure that nothing runs there any more: its ranks are lost at once. `how` ends a sentence."""
        for gang, member in self._members():
            if member.node_id == node_id:
                self._lost(unit, gang, member, f"node {node_id} of rank {member.rank} {how}")

    def _is_news(self, agent_id: str) -> bool:
        granted = self._watch.granted.get(agent_id)
        return granted is not None and self._server.world[GrantedLimits].get(agent_id) != _record(agent_id, granted)

    def _keep(self, unit: Unit, agent_id: str) -> None:
        unit.put(_record(agent_id, self._watch.granted[agent_id]))

    def _forget(self, unit: Unit) -> None:
        """Of agents that no node is of any more."""
        agents = {record.agent_id for record in self._server.world[NodeRecord].values()}
        for granted in [g for g in self._server.world[GrantedLimits].values() if g.agent_id not in agents]:
            unit.delete(granted)

    def _observe(self) -> int:
        now_ms = self._server.clock.elapsed_ms()
        self.patience_ms += max(0, min(now_ms - self._looked_ms, _MOST_MS))
        self._looked_ms = now_ms
        return self.patience_ms

    def _again(self) -> None:
        """Not from timer to timer: between two looks the loop must have had its turn, in which heartbeats are read."""
        asyncio.get_running_loop().call_soon(lambda: self._server.clock.call_after(TICK_MS, self._look))

    def _look(self) -> None:
        self._again()
        now_ms = self._observe()
        agents = {record.agent_id for record in self._server.world[NodeRecord].values() if not record.removed}
        silent = {agent_id for agent_id in agents if self._watch.is_silent(agent_id, now_ms)}
        for agent_id in silent - self._silent:
            LOG.warning("agent %s is not heard of: its nodes take no work", agent_id)
        if silent != self._silent:
            self._server.planning.fleet.agents_changed(silent ^ self._silent)
            self._silent = silent
            self._server.planning.soon()
        if silent:
            overdue = list(self._overdue(now_ms))
            if overdue:
                self._server.act(lambda unit: self._declare(unit, overdue))

    def _overdue(self, now_ms: int) -> Iterator[tuple[Gang, Member, Overdue]]:
        crews: dict[int, Crew] = {}
        for gang, member in self._members():
            agent_id = self.agent_of(member.node_id)
            if agent_id and agent_id not in self._silent:
                continue
            number = gang.assignment.assignment
            crew = crews.setdefault(number, self.crew_of(gang))
            found = self._watch.overdue(crew, agent_id, gang.policy.grace_ms, now_ms)
            if found is not None:
                yield gang, member, found

    def _declare(self, unit: Unit, overdue: list[tuple[Gang, Member, Overdue]]) -> None:
        for gang, member, found in overdue:
            sentence = (
                f"node {member.node_id} of rank {member.rank} was not heard of for {found.silent_ms / 1000:.0f} s: over its limit of "
                f"{found.limit_ms / 1000:g} s, {MARGIN_MS / 1000:g} s and the grace of {gang.policy.grace_ms / 1000:g} s")
            self._lost(unit, gang, member, sentence)

    def _lost(self, unit: Unit, gang: Gang, member: Member, sentence: str) -> None:
        LOG.warning("assignment %s: %s", gang.assignment.assignment, sentence)
        self._server.gangs.dispatch(unit, gang.assignment.assignment, ev.NodeLost(member.rank, sentence))

    # ------------------------------------------------------------ who has which ranks

    def agent_of(self, node_id: str) -> str:
        record = self._server.world[NodeRecord].get(node_id)
        return record.agent_id if record is not None else ""

    def has_ranks(self, node_id: str) -> bool:
        """Are there ranks whose end on this node nobody has confirmed?"""
        return any(member.node_id == node_id and member.state != MemberState.EXITED for _, member in self._members())

    def crew_of(self, gang: Gang) -> Crew:
        ranks: dict[str, set[int]] = {}
        for member in gang.members:
            ranks.setdefault(self.agent_of(member.node_id), set()).add(member.rank)
        return Crew(gang.assignment.size, {agent: frozenset(theirs) for agent, theirs in ranks.items()})

    def _members(self) -> Iterator[tuple[Gang, Member]]:
        """Those that somebody still has to answer for."""
        for gang in list(self._server.gangs.running.values()):
            for member in gang.members:
                if not member.node_lost and member.state != MemberState.RELEASED:
                    yield gang, member


def _record(agent_id: str, limits: Limits) -> GrantedLimits:
    return GrantedLimits(agent_id, limits.lease_ms, limits.outage_limit_ms, limits.silent_ms)
