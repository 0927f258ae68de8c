"""What `phalanx status` shows: the control plane, its nodes, its clusters, and what waits with the reason."""

from __future__ import annotations

import os
from typing import Any

from phalanx import __version__
from phalanx.model.node import NodeRecord
from phalanx.model.reasons import sentence
from phalanx.model.work import Function
from phalanx.server.server import Server
from phalanx.server.snapshot import node_of


class StatusDoor:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._started_ms = server.now_ms()

    async def status(self, request: dict[str, Any]) -> dict[str, Any]:
        """{} -> {"server", "nodes", "clusters", "waiting"}; reasons are a code and numbers, with the sentence made here (design rule 8)."""
        return {
            "server": {
                "version": __version__,
                "pid": os.getpid(),
                "workspace": self._server.config.workspace,
                "up_s": (self._server.now_ms() - self._started_ms) // 1000,
            },
            "nodes": [self._node(record) for record in self._server.world[NodeRecord].values() if not record.removed],
            "clusters": [self._cluster(gang) for gang in self._server.gangs.running.values()],
            "waiting": [self._waiting(request, reason) for request, reason in self._server.planning.waiting()],
        }

    def _node(self, record: NodeRecord) -> dict[str, Any]:
        node = node_of(record, self._server.agents.is_connected(record.node_id))
        holders = [gang.assignment.cluster_id for gang in self._server.nodes.on(record.node_id)]
        return {
            "node_id": record.node_id,
            "state": f"{node.state.value}{f' ({node.state_reason})' if node.state_reason else ''}",
            "unschedulable": record.unschedulable,
            "by_hand": str(record.by_hand),
            "reason": record.cordoned,
            "decided_by": record.decided_by,
            "decided_ms": record.decided_ms,
            "gpu_type": record.gpu_type,
            "gpu_count": record.gpu_count,
            "simulated": record.simulated,
            "shared_only": record.shared_only,
            "cpu_milli": record.cpu_milli,
            "memory_mib": record.memory_mib,
            "runtime": record.runtime,
            "runtime_reason": record.runtime_reason,
            "guarantees": record.guarantees,
            "engine": record.engine,
            "held_by": holders,
        }

    def _cluster(self, gang: Any) -> dict[str, Any]:
        assignment = gang.assignment
        function = self._server.world[Function].get(assignment.function_id)
        return {
            "cluster_id": assignment.cluster_id,
            "assignment": assignment.assignment,
            "state": str(assignment.phase),
            "size": assignment.size,
            "function": function.name if function else assignment.function_id,
            "app_id": assignment.app_id,
            "nodes": [member.node_id for member in gang.members],
            "containers": [member.task_id for member in gang.members],
            "states": [str(member.state) for member in gang.members],
            "inputs": [attempt.input_id for attempt in gang.open],
        }

    def _waiting(self, request: Any, reason: Any) -> dict[str, Any]:
        function = self._server.world[Function].get(request.function_id)
        return {
            "call": self._server.planning.call_of(request.request_id),
            "function": function.name if function else request.function_id,
            "size": request.size,
            "since_ms": request.submitted_ms,
            "reason": {
                "code": str(reason.code),
                "sentence": sentence(reason, self._server.now_ms()),
                "numbers": dict(reason.numbers),
                "earliest_start_ms": reason.earliest_start_ms,
            },
        }
