"""Nodes that wait for one gang: the healthy ones of a gang that lost a member, and those of gangs that were stopped for another.

In the store, so that a restart neither gives them away nor stops others once more. The planner keeps only those that are free, and
lends them to whoever ends before the time is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from phalanx.core.gang import Gang
from phalanx.model.cluster import Cause, Failure, Member
from phalanx.model.fleet import NodeState, Retention
from phalanx.model.node import NodeRecord
from phalanx.model.retention import KeptNodes
from phalanx.model.work import Input, InputState
from phalanx.server.snapshot import node_of
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

LOSSES = (Cause.NODE, Cause.REFUSED, Cause.PREEMPTED)


class Retentions:
    def __init__(self, server: Server) -> None:
        self._server = server

    def load(self) -> None:
        """What was kept runs out by the same clock, also while the server was away: nodes must not idle for it."""
        for kept in self._server.world[KeptNodes].values():
            self._server.planning.soon_after(kept.until_ms)

    # ------------------------------------------------------------ for whom

    def after_loss(self, unit: Unit, gang: Gang, requeued: Iterable[str]) -> None:
        """A gang ended because of some of its nodes: the others wait for its next try."""
        verdict = gang.assignment.verdict
        if verdict is None or verdict.cause not in LOSSES or verdict.user_fault or gang.assignment.size == 1:
            return
        item = self._next_of(gang, requeued)
        lost = {member.node_id for member in gang.members if self._is_out(gang, member, verdict)}
        already = {node_id for kept in self._server.world[KeptNodes].values() for node_id in kept.node_ids}
        healthy = [member.node_id for member in gang.members if member.node_id not in lost | already]
        if item is not None and lost and healthy:
            self._keep(unit, item, healthy, self._server.config.retention_ms)

    def for_victims(self, unit: Unit, item: Input, victims: Mapping[str, list[str]]) -> None:
        """These clusters (id -> nodes) are stopped for an input, and theirs are its nodes once they are clean."""
        nodes = sorted({node_id for node_ids in victims.values() for node_id in node_ids})
        self._keep(unit, item, nodes, self._server.config.grace_ms + self._server.config.retention_ms, victims)

    def started(self, unit: Unit, input_id: str) -> None:
        """It has its cluster: what is kept for it beyond that is anybody's."""
        kept = self._server.world[KeptNodes].get(input_id)
        if kept is not None:
            unit.delete(kept)

    # ------------------------------------------------------------ for the planner

    def current(self, unit: Unit, requests: Mapping[str, str]) -> tuple[Retention, ...]:
        """Those that still hold, by request. `requests`: input id -> the request that is made for it.

        An input without a request of its own (its retry's delay runs) keeps its nodes under its own id.
        """
        now, found = self._server.now_ms(), []
        for kept in list(self._server.world[KeptNodes].values()):
            item = self._server.world[Input].get(kept.input_id)
            if item is None or item.state != InputState.PENDING or kept.until_ms <= now:
                unit.delete(kept)
                continue
            name = requests.get(kept.input_id, kept.input_id)
            found.append(Retention(name, tuple(kept.node_ids), kept.until_ms, tuple(kept.victims)))
        return tuple(found)

    # ------------------------------------------------------------

    def _keep(self, unit: Unit, item: Input, nodes: list[str], for_ms: int, victims: Iterable[str] = ()) -> None:
        kept = self._server.world[KeptNodes].get(item.input_id) or KeptNodes(item.input_id, item.function_id)
        kept.node_ids = sorted({*kept.node_ids, *nodes})
        kept.victims = sorted({*kept.victims, *victims})
        kept.until_ms = max(kept.until_ms, self._server.now_ms() + for_ms)
        unit.put(kept)
        unit.after(lambda: self._server.planning.soon_after(kept.until_ms))

    def _next_of(self, gang: Gang, requeued: Iterable[str]) -> Input | None:
        """The input that will be tried again: one that ran on the gang, or, where it never came so far, the one it was for."""
        inputs = self._server.world[Input]
        back = [inputs[input_id] for input_id in requeued if inputs[input_id].state == InputState.PENDING]
        meant = inputs.get(gang.assignment.input_id)
        if back or gang.took_inputs or meant is None or meant.state != InputState.PENDING:
            return back[0] if back else None
        return meant

    def _is_out(self, gang: Gang, member: Member, verdict: Failure) -> bool:
        if member.node_lost or (verdict.cause != Cause.PREEMPTED and member.rank == verdict.rank):
            return True
        record = self._server.world[NodeRecord].get(member.node_id)
        return record is None or record.removed or node_of(record, self._server.agents.is_connected(member.node_id)).state != NodeState.UP


def request_ids(server: Server, inputs: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Input id -> the pending request that a kept input waits by. `inputs`: those that each request is for."""
    kept = server.world[KeptNodes]
    return {input_id: request_id for request_id, lot in inputs.items() for input_id in lot if input_id in kept} if kept else {}
