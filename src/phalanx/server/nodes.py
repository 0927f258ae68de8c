"""What people decide about nodes: cordon, drain, uncordon, remove. Kept in the node's record, and so over every restart.

    cordon     no new work; what runs goes on
    drain      no new work; clusters on it finish their open inputs, take no more and end: each by its function's time-out
    drain now  no new work; every rank of every gang on it is interrupted at once, and the inputs run again elsewhere
    remove     forget it. An agent that brings it again finds it as it was left: drained, until somebody says `uncordon`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core import events as ev
from phalanx.core.gang import Gang
from phalanx.core.states import move_node
from phalanx.model.cluster import Cause, MemberState
from phalanx.model.node import ByHand, NodeRecord
from phalanx.model.refusal import Refusal, RefusalKind, not_found
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

NAMED = 20      # of the fleet's nodes, in the refusal of a name that is not among them


class Nodes:
    def __init__(self, server: Server) -> None:
        self._server = server

    def get(self, node_id: str) -> NodeRecord:
        """A node of the fleet, down or not. Refuses other names with those there are."""
        record: NodeRecord | None = self._server.world[NodeRecord].get(node_id)
        if record is not None and not record.removed:
            return record
        known = sorted(r.node_id for r in self._server.world[NodeRecord].values() if not r.removed)
        more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
        hint = f"The fleet has {', '.join(known[:NAMED])}{more}" if known else "No node has joined this fleet yet"
        raise not_found("node", node_id, hint)

    def on(self, node_id: str) -> list[Gang]:
        """The gangs that hold something of a node, until nothing of them remains there."""
        return [
            gang for gang in self._server.gangs.running.values()
            if any(m.node_id == node_id and m.state != MemberState.RELEASED for m in gang.members)
        ]  # fmt: skip

    # ------------------------------------------------------------ what people say

    def cordon(self, unit: Unit, node_id: str, reason: str = "", by: str = "") -> NodeRecord:
        """No new work on it; what runs goes on."""
        record = self.get(node_id)
        if record.by_hand in (ByHand.DRAINING, ByHand.DRAINED):
            raise Refusal(RefusalKind.CONFLICT, f"node '{node_id}' is {record.by_hand} already, and takes no new work")
        if record.by_hand == ByHand.SERVING:
            move_node(record, ByHand.CORDONED)
        self._decided(unit, record, reason, by)
        return record

    def drain(self, unit: Unit, node_id: str, reason: str = "", by: str = "", now: bool = False) -> NodeRecord:
        """No new work on it, and an end for what runs: after its open inputs, or at once (then they run again elsewhere)."""
        record = self.get(node_id)
        if record.by_hand in (ByHand.SERVING, ByHand.CORDONED):
            move_node(record, ByHand.DRAINING)
        self._decided(unit, record, reason, by)
        sentence = f"node {node_id} is being drained{f': {record.cordoned}' if record.cordoned else ''}"
        for gang in self.on(node_id):
            self._server.gangs.dispatch(unit, gang.assignment.assignment, ev.StopAsked(Cause.PREEMPTED, sentence, graceful=not now))
        self._look(unit, record)
        return record

    def uncordon(self, unit: Unit, node_id: str, by: str = "") -> NodeRecord:
        """It takes work again. Clusters that were told to end still do."""
        record = self.get(node_id)
        if record.by_hand != ByHand.SERVING:
            move_node(record, ByHand.SERVING)
        self._decided(unit, record, "", by)
        return record

    def remove(self, unit: Unit, node_id: str, dead: bool = False) -> None:
        """Forget a node that is drained, or whose agent is away.

        What an agent that is away still runs may go on for minutes (design rule 3). `dead` says that the machine is known to be off: what
        it ran is lost then, and starts elsewhere at once.
        """
        record = self.get(node_id)
        away, holders = not self._server.agents.is_connected(node_id), self.on(node_id)
        if not away and record.by_hand != ByHand.DRAINED:
            raise Refusal(RefusalKind.CONFLICT, _still_in_use(record, holders))
        if holders and not dead:
            raise Refusal(RefusalKind.CONFLICT, (
                f"node '{node_id}' is away, and {_names(holders)} may still run there: wait until it is back or declared lost, "
                "or say --dead if the machine is known to be off"
            ))  # fmt: skip
        if holders:
            self._server.leases.node_is_dead(unit, node_id, "was removed as dead")
        record.removed = True
        unit.put(record)
        unit.after(self._server.planning.soon)

    # ------------------------------------------------------------ what happens to nodes

    def left(self, unit: Unit, gang: Gang) -> None:
        """Nothing of a gang remains: a node that was draining may be drained."""
        for node_id in {member.node_id for member in gang.members}:
            record = self._server.world[NodeRecord].get(node_id)
            if record is not None:
                self._look(unit, record)

    def restated(self, unit: Unit, node_id: str, unschedulable: str) -> None:
        """Its agent says anew why it takes no work; nothing: what remained there of containers is gone at last."""
        record = self._server.world[NodeRecord].get(node_id)
        if record is None:
            return
        record.unschedulable = unschedulable
        unit.put(record)
        if not unschedulable:
            self.nothing_remains(unit, {node_id})
        unit.after(self._server.planning.soon)

    def nothing_remains(self, unit: Unit, node_ids: set[str]) -> None:
        """What ranks of clusters that are not over yet left on these nodes is gone: their end must not take them out of service for it."""
        members = (member for gang in self._server.gangs.running.values() for member in gang.members)
        for member in members:
            if member.remains and member.node_id in node_ids:
                member.remains = ""
                unit.put(member)

    @staticmethod
    def carry_over(old: NodeRecord | None, new: NodeRecord) -> None:
        """A node that registers again, also one that was removed, is as people left it."""
        if old is not None:
            new.cordoned, new.by_hand, new.decided_by, new.decided_ms = old.cordoned, old.by_hand, old.decided_by, old.decided_ms

    def _look(self, unit: Unit, record: NodeRecord) -> None:
        if record.by_hand == ByHand.DRAINING and not self.on(record.node_id):
            move_node(record, ByHand.DRAINED)
            unit.put(record)
            unit.after(lambda: self._server.topics.wake(("node", record.node_id)))

    def _decided(self, unit: Unit, record: NodeRecord, reason: str, by: str) -> None:
        record.cordoned, record.decided_by, record.decided_ms = reason, by, self._server.now_ms()
        unit.put(record)
        unit.after(self._server.planning.soon)


def _still_in_use(record: NodeRecord, holders: list[Gang]) -> str:
    what = f"{_names(holders)} {'runs' if len(holders) == 1 else 'run'} there" if holders else "it takes work"
    after = "wait until it is drained" if record.by_hand == ByHand.DRAINING else f"`phalanx node drain {record.node_id}` first"
    return f"node '{record.node_id}' is {record.by_hand}, and {what}: {after}"


def _names(gangs: list[Gang]) -> str:
    names = [gang.assignment.cluster_id for gang in gangs]
    return " and ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
