"""What `phalanx node` says and asks: cordon, drain, uncordon, remove. The list is the status's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.model.refusal import invalid
from phalanx.server.server import Server
from phalanx.server.unit import Unit


class NodeDoor:
    """Every answer comes when the decision is on disk: {"node": name, "state": what it is now, "clusters": what still runs there}."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def cordon(self, request: dict[str, Any]) -> dict[str, Any]:
        """{"node", "reason", "by"}"""
        node_id, reason, by = _node(request), _text(request, "reason"), _text(request, "by")
        return await self._decide(node_id, lambda unit: self._server.nodes.cordon(unit, node_id, reason, by))

    async def drain(self, request: dict[str, Any]) -> dict[str, Any]:
        """{"node", "reason", "by", "now": bool}"""
        node_id, reason, by, now = _node(request), _text(request, "reason"), _text(request, "by"), bool(request.get("now"))
        return await self._decide(node_id, lambda unit: self._server.nodes.drain(unit, node_id, reason, by, now))

    async def uncordon(self, request: dict[str, Any]) -> dict[str, Any]:
        """{"node", "by"}"""
        node_id = _node(request)
        return await self._decide(node_id, lambda unit: self._server.nodes.uncordon(unit, node_id, _text(request, "by")))

    async def remove(self, request: dict[str, Any]) -> dict[str, Any]:
        """{"node", "dead": bool}"""
        node_id = _node(request)
        return await self._decide(node_id, lambda unit: self._server.nodes.remove(unit, node_id, bool(request.get("dead"))))

    async def _decide(self, node_id: str, change: Callable[[Unit], object]) -> dict[str, Any]:
        record = self._server.nodes.get(node_id)
        await self._server.act(change)
        clusters = [gang.assignment.cluster_id for gang in self._server.nodes.on(node_id)]
        return {"node": node_id, "state": "removed" if record.removed else record.by_hand, "clusters": clusters}


def _node(request: dict[str, Any]) -> str:
    node_id = _text(request, "node")
    if not node_id:
        raise invalid("name a node: `phalanx node list` shows them")
    return node_id


def _text(request: dict[str, Any], name: str) -> str:
    return str(request.get(name) or "").strip()
