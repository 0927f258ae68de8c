"""A server with no mind of its own: says to a real agent what the test says, and remembers what it hears."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpclib.server import Server

from phalanx.protocol import agent_pb2 as pb
from phalanx.protocol.agent_grpc import AgentsBase

PATIENCE = 40.0


@dataclass
class Seen:
    """What the agent has said about one container."""

    prepared: list[pb.Prepared] = field(default_factory=list)
    started: list[pb.Started] = field(default_factory=list)
    reached: list[pb.Reached] = field(default_factory=list)
    exited: list[pb.Exited] = field(default_factory=list)
    released: list[pb.Released] = field(default_factory=list)
    records: list[tuple[int, bytes]] = field(default_factory=list)
    log_end: int = 0

    def text(self, *streams: int) -> bytes:
        """Everything it wrote to these streams (all, when none is named), in order."""
        return b"".join(data for stream, data in self.records if not streams or stream in streams)


class FakeServer(AgentsBase):
    """Runs in a thread. Its methods may be called from the test's own thread, and wait on conditions, never on time."""

    def __init__(self, tasks_socket: Path, prefix: str = "fdaa:7e57:1") -> None:
        self.path, self.prefix = tasks_socket, prefix
        self.registers: list[pb.Register] = []
        self.heartbeats = 0
        self.node_states: list[pb.NodeState] = []
        self.containers: dict[tuple[int, int], Seen] = {}
        self.layers: dict[str, list[tuple[str, bytes]]] = {}
        self.layer_requests: list[str] = []
        self.preambles: list[str] = []
        self.holding_layers = False
        self.acknowledging = True
        self.outage_limit_ms = self.lease_ms = self.silent_ms = 0
        self._changed = threading.Condition()
        self._streams: dict[str, Any] = {}      # by node, and the newest of all as ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._sockets: set[socket.socket] = set()
        self._jobs: set[asyncio.Task[None]] = set()
        self.up()

    # ---------------------------------------------------------------- what tests do

    def up(self) -> None:
        self._call(self._listen())

    def down(self) -> None:
        """As after kill -9: every connection breaks, nobody listens."""
        self._call(self._break())

    def close(self) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, to: str = "", **message: Any) -> None:
        """`to` a node's agent, or the one that registered last."""
        async def go() -> None:
            await self._streams[to].send_message(pb.ToAgent(**message))
        self._call(go())

    def prepare(self, assignment: int, rank: int = 0, **fields: Any) -> Seen:
        """Ask, wait, and answer what the agent said; fields override a small container's."""
        ask = {
            "assignment": assignment, "rank": rank, "size": 1, "node_id": "node-0", "task_id": f"ta-{assignment}-{rank}", "app_id": "ap-1",
            "function_name": "train", "task_secret": "sesame", "memory_mib": 128, "memory_limit_mib": 256, "cpu_milli": 125} | fields
        before = len(self.seen(assignment, rank).prepared)
        self.send(fields.get("node_id", ""), prepare=pb.Prepare(**ask))
        return self.wait(assignment, rank, lambda seen: len(seen.prepared) > before)

    def run(self, assignment: int, *command: str, rank: int = 0, **fields: Any) -> Seen:
        """Prepare and start a command; waits until it is started or could not be."""
        seen = self.prepare(assignment, rank, command=command, **fields)
        assert not seen.prepared[-1].HasField("refusal"), seen.prepared[-1].refusal.sentence
        self.send(fields.get("node_id", ""), start=pb.Start(assignment=assignment, rank=rank))
        return self.wait(assignment, rank, lambda seen: bool(seen.started or seen.exited))

    def finish(self, assignment: int, rank: int = 0) -> Seen:
        """Wait for its end, then have it released."""
        self.wait(assignment, rank, lambda seen: bool(seen.exited))
        self.send(release=pb.Release(assignment=assignment, rank=rank))
        return self.wait(assignment, rank, lambda seen: bool(seen.released))

    def stop(self, assignment: int, rank: int = 0, signal: int = 2, grace_ms: int = 10_000) -> None:
        self.send(stop=pb.Stop(assignment=assignment, rank=rank, signal=signal, grace_ms=grace_ms))

    def seen(self, assignment: int, rank: int = 0) -> Seen:
        return self.containers.setdefault((assignment, rank), Seen())

    def wait(self, assignment: int, rank: int, condition: Callable[[Seen], bool]) -> Seen:
        seen = self.seen(assignment, rank)
        self.until(lambda: condition(seen), lambda: f"container {assignment}-{rank}: {seen}"[:3000])
        return seen

    def until(self, condition: Callable[[], bool], explain: Callable[[], str] = lambda: "") -> None:
        with self._changed:
            if not self._wait(condition):
                raise AssertionError(f"waited {PATIENCE:g} s in vain. {explain()}")

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Woken by every message, and now and then for what nobody tells us, such as a dead process."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                return False
            self._changed.wait(0.25)
        return True

    # ---------------------------------------------------------------- the protocol's side

    async def Session(self, stream) -> None:  # type: ignore[no-untyped-def]
        async for message in stream:
            kind = message.WhichOneof("message")
            body = getattr(message, kind)
            if kind == "register":
                self._streams |= {"": stream} | {node.node_id: stream for node in body.nodes}
                await stream.send_message(pb.ToAgent(welcome=pb.Welcome(
                    protocol_version=1, heartbeat_ms=500 if self.lease_ms else 1000, outage_limit_ms=self.outage_limit_ms,
                    lease_ms=self.lease_ms, silent_ms=self.silent_ms, workspace_prefix=self.prefix)))
                self.registers.append(body)
            elif kind == "heartbeat":
                self.heartbeats += 1
                await stream.send_message(pb.ToAgent(beat_answer=pb.BeatAnswer(boottime_ms=body.boottime_ms)))
            elif kind == "node_state":
                self.node_states.append(body)
            elif kind == "logs":
                await self._take_logs(stream, body)
            else:
                getattr(self.seen(body.assignment, body.rank), kind).append(body)
            with self._changed:
                self._changed.notify_all()

    async def _take_logs(self, stream, logs: pb.Logs) -> None:  # type: ignore[no-untyped-def]
        seen = self.seen(logs.assignment, logs.rank)
        position = logs.offset
        for record in logs.records:
            if position >= seen.log_end:
                seen.records.append((record.stream, record.data))
            position += 13 + len(record.data)
        seen.log_end = max(seen.log_end, logs.end_offset)
        if self.acknowledging:
            await stream.send_message(pb.ToAgent(ack_logs=pb.AckLogs(
                assignment=logs.assignment, rank=logs.rank, offset=seen.log_end)))

    async def GetLayer(self, stream) -> None:  # type: ignore[no-untyped-def]
        request = await stream.recv_message()
        self.layer_requests.append(request.layer_id)
        while self.holding_layers:      # noqa: ASYNC110 (the test's own thread changes it)
            await asyncio.sleep(0.01)
        for path, data in self.layers[request.layer_id]:
            for start in range(0, max(1, len(data)), 1 << 20):
                await stream.send_message(pb.LayerFile(
                    path=path, mode=0o644, data=data[start:start + (1 << 20)], more=start + (1 << 20) < len(data)))

    # ---------------------------------------------------------------- sockets, as the front has them

    async def _listen(self) -> None:
        self._grpc = Server([self])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = f"{self.path}.new"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(draft)
        self._listener.listen(64)
        os.replace(draft, self.path)
        self._accepting = asyncio.create_task(self._accept())

    async def _break(self) -> None:
        self._accepting.cancel()
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for job in list(self._jobs):
            job.cancel()
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()
        await asyncio.sleep(0)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            connection.setblocking(False)
            job = asyncio.create_task(self._greet(connection))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

    async def _greet(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        line = b""
        while not line.endswith(b"\n"):
            byte = await loop.sock_recv(connection, 1)
            if not byte:
                connection.close()
                return
            line += byte
        self._sockets.add(connection)
        if line == b"PHALANX/1 agent\n":
            await loop.connect_accepted_socket(self._grpc._protocol_factory, connection)
            return
        self.preambles.append(line.decode().strip())
        with self._changed:
            self._changed.notify_all()
        while data := await loop.sock_recv(connection, 65536):     # a container's API: an echo is enough here
            await loop.sock_sendall(connection, data)
        connection.close()

    def _call(self, work) -> Any:  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)
