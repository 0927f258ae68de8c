"""RPCs that look at containers and clusters. What changes them is in containers.py."""

from __future__ import annotations

from typing import Any

from modal_proto import api_pb2

from phalanx.model.app import App
from phalanx.model.caller import Caller
from phalanx.model.cluster import Assignment, Member, MemberState, Phase
from phalanx.model.refusal import invalid, not_found
from phalanx.server.server import Server
from phalanx.server.unit import Unit

_GONE = (MemberState.EXITED, MemberState.RELEASED)
_TASK_STATS = api_pb2.TaskStats.DESCRIPTOR.fields_by_name


class Tasks:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._members: dict[Any, Member] = server.world[Member]
        self._assignments: dict[int, Assignment] = server.world[Assignment]

    def TaskList(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Containers that are not gone: of an app, or of an environment (the default one, unless it is named)."""
        if request.app_id:
            self._server.apps.get(request.app_id)
        environment = "" if request.app_id else self._server.environments.get(request.environment_name).name
        tasks = []
        for member in self._members.values():
            app = self._server.world[App].get(member.app_id)
            if member.state in _GONE or app is None:
                continue
            if request.app_id not in ("", app.app_id) or environment not in ("", app.environment):
                continue
            task = api_pb2.TaskStats(
                task_id=member.task_id,
                app_id=app.app_id,
                app_description=app.name or app.description,
                started_at=member.started_ms / 1000,
            )
            if "enqueued_at" in _TASK_STATS:
                task.enqueued_at = member.created_ms / 1000
            tasks.append(task)
        return api_pb2.TaskListResponse(tasks=tasks)

    def TaskGetInfo(self, request: Any, caller: Caller, unit: Unit) -> Any:
        member = self._member(request.task_id)
        info = api_pb2.TaskInfo(
            id=member.task_id,
            started_at=member.started_ms / 1000,
            enqueued_at=member.created_ms / 1000,
        )
        assignment = self._assignments.get(member.assignment)
        if assignment is not None and assignment.gpu_type:
            info.gpu_type = assignment.gpu_type
        if member.state in _GONE:
            # `modal container logs` reads up to here: what was said about its end is behind its own time.
            last_ns = self._server.logs.last_ns(member.assignment, member.rank, member.app_id)
            info.finished_at = max(member.ended_ms / 1000, last_ns / 1e9) + 1.0
        return api_pb2.TaskGetInfoResponse(app_id=member.app_id, info=info)

    def TaskCurrentInputs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """The inputs that the asking container has and has not put yet, oldest first."""
        if not caller.is_task:
            raise invalid("TaskCurrentInputs is for containers: it says what the asking one works on")
        attempts = self._server.containers.open_attempts(caller.assignment, caller.rank)
        return api_pb2.TaskCurrentInputsResponse(input_ids=[attempt.input_id for attempt in attempts])

    def ClusterGet(self, request: Any, caller: Caller, unit: Unit) -> Any:
        for assignment in self._assignments.values():
            if assignment.cluster_id == request.cluster_id:
                return api_pb2.ClusterGetResponse(cluster=self._stats(assignment))
        raise not_found("Cluster", request.cluster_id, "`phalanx status` shows the clusters there are")

    def ClusterList(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Clusters whose containers are not all gone, of one environment."""
        environment = self._server.environments.get(request.environment_name).name
        clusters = []
        for assignment in self._assignments.values():
            app = self._server.world[App].get(assignment.app_id)
            if assignment.clustered and assignment.phase != Phase.ENDED and app is not None and app.environment == environment:
                clusters.append(self._stats(assignment))
        return api_pb2.ClusterListResponse(clusters=clusters)

    def ClusterReservationList(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Nodes here are all the user's own: nothing is reserved from anyone."""
        return api_pb2.ClusterReservationListResponse()

    def _member(self, task_id: str) -> Member:
        for member in self._members.values():
            if member.task_id == task_id:
                return member
        raise not_found("Container", task_id, "`modal container list` shows those that run")

    def _stats(self, assignment: Assignment) -> Any:
        ranks = sorted((m for m in self._members.values() if m.assignment == assignment.assignment), key=lambda member: member.rank)
        return api_pb2.ClusterStats(
            app_id=assignment.app_id,
            cluster_id=assignment.cluster_id,
            task_ids=[member.task_id for member in ranks],
            started_at=(assignment.running_ms or assignment.created_ms) / 1000,
        )
