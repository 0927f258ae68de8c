"""The nodes that an input's next attempt avoids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.model.fleet import NodeState
from phalanx.model.node import NodeRecord
from phalanx.model.work import Function, Input
from phalanx.scheduler.fit import can_ever_fit
from phalanx.server.snapshot import node_of, request_of

if TYPE_CHECKING:
    from phalanx.server.server import Server


def excluded_for(server: Server, function: Function, item: Input | None) -> frozenset[str]:
    """Those that earlier ends spoke against; none, where the nodes in service without them could never run it."""
    if item is None or not item.excluded_nodes:
        return frozenset()
    excluded = frozenset(item.excluded_nodes)
    records = [record for record in server.world[NodeRecord].values() if not record.removed and record.node_id not in excluded]
    nodes = [node_of(record, server.agents.is_connected(record.node_id)) for record in records]
    in_service = [node for node in nodes if node.state == NodeState.UP]
    return excluded if can_ever_fit(request_of(function, "new", 0), in_service) is None else frozenset()
