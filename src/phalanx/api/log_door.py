"""`phalanx logs`: lines of a cluster, a container or an app, each with its rank."""

from __future__ import annotations

import asyncio
from typing import Any

from phalanx.model.app import App
from phalanx.model.cluster import Assignment, Member
from phalanx.model.logs import LogFilter, LogLine
from phalanx.model.refusal import invalid, not_found
from phalanx.server.server import Server

LONGEST_S = 50.0
STREAMS = {1: "stdout", 2: "stderr", 3: "system"}


class LogDoor:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def logs(self, request: dict[str, Any]) -> dict[str, Any]:
        """Lines of `of` (cu-…, ta-…, ap-… or an app's name in `environment`), of one `rank` only if it is set, behind `after`.

        `after` is `next` of the answer before; without it all, or the last `tail`. Waits up to `wait_s` seconds when there is
        nothing new. caught_up: those were all there are now; done: no more will ever come.
        """
        app_id, wanted, members = self._whose(request)
        logs = self._server.logs
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(float(request.get("wait_s") or 0), LONGEST_S)
        cursor = logs.reading.cursor(app_id, await self._after(request, app_id, wanted), wanted)
        while True:
            over = self._is_over(app_id, members)
            lines, exhausted = cursor.next()
            if lines or (exhausted and (over or loop.time() >= deadline)):
                plain = [self._plain(line) for line in lines]
                return {"lines": plain, "next": str(cursor.seq), "done": exhausted and over, "caught_up": exhausted}
            if exhausted:
                await self._server.topics.wait_any((("logs", app_id), ("app", app_id)), max(deadline - loop.time(), 0))

    async def _after(self, request: dict[str, Any], app_id: str, wanted: LogFilter) -> int:
        if str(request.get("after") or "").isdigit():
            return int(request["after"])
        if request.get("tail"):
            return await self._server.logs.reading.start_of_tail(app_id, int(request["tail"]), wanted)
        return 0

    def _whose(self, request: dict[str, Any]) -> tuple[str, LogFilter, list[Member] | None]:
        """The app, the lines of it that are wanted, and the members whose end is the end of them (None: the app's)."""
        of = str(request.get("of") or "")
        rank = request.get("rank")
        if rank is not None and (not isinstance(rank, int) or rank < 0):
            raise invalid(f"rank {rank!r} is not a rank: ranks are 0, 1, 2, …")
        if of.startswith("cu-"):
            return self._of_cluster(of, rank)
        if of.startswith("ta-"):
            member = self._server.gangs.by_task.get(of)
            if member is None:
                raise not_found("Container", of, "`modal container list` shows those that run")
            return member.app_id, LogFilter(task_id=of), [member]
        app = self._server.world[App].get(of) or self._named(request, of)
        return app.app_id, LogFilter(rank=rank), None

    def _of_cluster(self, cluster_id: str, rank: int | None) -> tuple[str, LogFilter, list[Member] | None]:
        assignment = next((a for a in self._server.world[Assignment].values() if a.cluster_id == cluster_id), None)
        if assignment is None:
            raise not_found("Cluster", cluster_id, "`phalanx status` shows the clusters there are")
        if rank is not None and rank >= assignment.size:
            raise invalid(f"cluster {cluster_id} has no rank {rank}: its ranks are 0 to {assignment.size - 1}")
        members = [m for m in self._server.world[Member].values() if m.assignment == assignment.assignment and rank in (None, m.rank)]
        return assignment.app_id, LogFilter(cluster_id=cluster_id, rank=rank), members

    def _named(self, request: dict[str, Any], name: str) -> App:
        environment = self._server.environments.get(str(request.get("environment") or "")).name
        app = self._server.apps.deployed(environment, name) or self._server.apps.previous(environment, name)
        if app is None:
            raise not_found("App, cluster or container", name, "`modal app list` and `phalanx status` show what there is")
        return app

    def _is_over(self, app_id: str, members: list[Member] | None) -> bool:
        reading = self._server.logs.reading
        if members is None:
            return reading.is_over(app_id)
        return all(reading.is_over(app_id, member) for member in members)

    def _plain(self, line: LogLine) -> dict[str, Any]:
        assignment = self._server.world[Assignment].get(line.assignment)
        clustered = assignment is not None and assignment.clustered
        return {
            "time_ns": line.time_ns,
            "app": line.app_id,
            "function": line.function_id,
            "cluster": line.cluster_id if clustered else "",
            "container": line.task_id,
            "rank": line.rank if clustered else None,
            "stream": STREAMS.get(line.stream, "system"),
            "call": line.call_id,
            "input": line.input_id,
            "text": line.text,
        }


