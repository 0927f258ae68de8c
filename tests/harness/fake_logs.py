"""A cluster whose containers only write: members in the server's world, and records as an agent would bring them from a shim's spool."""

from __future__ import annotations

import time
from typing import Any

from phalanx.model.cluster import Assignment, Cause, Member, MemberState, Phase
from phalanx.model.work import Function
from tests.harness.control_plane import ControlPlane

HEADER = 13     # of a record in the spool (node/spool.py)
STDOUT, STDERR = 1, 2


class FakeCluster:
    """One assignment of an app. `write` returns when the server acknowledged; what it acknowledged is in `acked`."""

    def __init__(self, control_plane: ControlPlane, app_id: str, size: int = 2, number: int = 7, name: str = "train") -> None:
        self.control_plane = control_plane
        self.app_id = app_id
        self.number = number
        self.cluster_id = f"cu-{number}"
        self.function_id = f"fu-{name}"
        self.spool: dict[int, list[tuple[int, int, int, bytes]]] = {rank: [] for rank in range(size)}     # offset, stream, time, data
        self.acked = dict.fromkeys(range(size), 0)
        control_plane.change(self._begin, size, name)

    def task_id(self, rank: int) -> str:
        return f"ta-{self.number}-{rank}"

    def spooled(self, rank: int) -> int:
        """The offset behind the last record."""
        if not self.spool[rank]:
            return 0
        offset, _, _, data = self.spool[rank][-1]
        return offset + HEADER + len(data)

    def spool_only(self, rank: int, data: bytes | str, stream: int = STDOUT, time_ns: int = 0) -> None:
        """The container writes; nobody has fetched it yet."""
        raw = data.encode() if isinstance(data, str) else data
        self.spool[rank].append((self.spooled(rank), stream, time_ns or time.time_ns(), raw))

    def write(self, rank: int, data: bytes | str, stream: int = STDOUT, time_ns: int = 0) -> None:
        self.spool_only(rank, data, stream, time_ns)
        self.send(rank)

    def send(self, rank: int, offset: int | None = None) -> int:
        """Bring everything from `offset` on, or from what was acknowledged last."""
        start = self.acked[rank] if offset is None else offset
        records = [(stream, at, data) for place, stream, at, data in self.spool[rank] if place >= start]
        if records:
            self.acked[rank] = self.control_plane.call(self._ingest, rank, start, records, self.spooled(rank))
        return self.acked[rank]

    def exit(self, rank: int) -> None:
        """The container is gone and its log is in."""
        self.control_plane.call(lambda: self.control_plane.server.logs.ended(self.number, rank, self.spooled(rank)))
        self.control_plane.change(self._gone, rank)

    def end(self) -> None:
        """All ranks exit, and the app is stopped and drained."""
        for rank in self.spool:
            self.exit(rank)
        self.control_plane.change(self._stop)

    async def _ingest(self, rank: int, offset: int, records: list[tuple[int, int, bytes]], end: int) -> int:
        return await self.control_plane.server.logs.ingest(self._member(rank), offset, records, end)

    def _member(self, rank: int) -> Member:
        member: Member = self.control_plane.server.world[Member][(self.number, rank)]
        return member

    def _begin(self, unit: Any, size: int, name: str) -> None:
        now = self.control_plane.server.now_ms()
        unit.put(Function(self.function_id, self.app_id, name, size=size, clustered=True))
        unit.put(Assignment(
            self.number, self.cluster_id, self.app_id, self.function_id, size, True, Phase.RUNNING, created_ms=now, running_ms=now,
        ))  # fmt: skip
        for rank in range(size):
            member = Member(
                self.number, rank, self.task_id(rank), f"node-{rank}", self.cluster_id, self.app_id, self.function_id,
                state=MemberState.READY, created_ms=now, started_ms=now,
            )  # fmt: skip
            unit.put(member)
            self.control_plane.server.gangs.by_task[member.task_id] = member

    def _gone(self, unit: Any, rank: int) -> None:
        member = self._member(rank)
        member.state, member.ended_ms = MemberState.EXITED, self.control_plane.server.now_ms()
        unit.put(member)

    def _stop(self, unit: Any) -> None:
        server = self.control_plane.server
        server.apps.stop(unit, self.app_id, Cause.STOPPED)
        server.apps.drained(unit, self.app_id)
