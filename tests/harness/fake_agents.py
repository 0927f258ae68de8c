"""Many fake agents over the real agent protocol, whose containers are coroutines that speak the real container RPCs.

    fleet = FakeFleet(control_plane, nodes=8)     one agent, eight nodes
    fleet.program = my_program                    what a rank does with an input: async (rank, FunctionInput) -> bytes

A fake is for scale and for faults: it can refuse, die, say nothing, or say a thing twice. The stories told over it are told
over real containers in tests/end_to_end.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import message_factory
from google.protobuf.empty_pb2 import Empty
from grpclib.client import Channel, StreamStreamMethod, UnaryUnaryMethod
from grpclib.exceptions import GRPCError, StreamTerminatedError
from modal_proto import api_pb2

from phalanx.api.transport import SERVICE
from phalanx.protocol import agent_pb2 as pb
from tests.harness.control_plane import ControlPlane

SPOOL_HEADER = 13     # of a record in the spool (node/spool.py)

Key = tuple[int, int]
"""(assignment, rank)"""

Program = Callable[["FakeRank", Any], Awaitable[Any]]


class Died(Exception):
    """Raised by a program: the container ends like this, without a word to the server."""

    def __init__(self, code: int = 0, signal: int = 0, oom: bool = False) -> None:
        super().__init__(f"code {code} signal {signal}")
        self.code, self.signal, self.oom = code, signal, oom


class Cancelled(Exception):
    """Raised by a program that was told of its input's cancellation: the runner puts it as terminated, and goes on."""


class PreambleChannel(Channel):
    """A grpclib channel over a Unix socket that says a line first."""

    def __init__(self, path: str, line: str) -> None:
        super().__init__(path=path)
        self._socket_path, self._line = path, line

    async def _create_connection(self) -> Any:
        raw = socket.socket(socket.AF_UNIX)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, self._socket_path)
        await loop.sock_sendall(raw, self._line.encode() + b"\n")
        _, protocol = await loop.create_unix_connection(self._protocol_factory, sock=raw)
        return protocol


@dataclass
class FakeRank:
    """One container: its Prepare message, and what the barriers told it."""

    prepare: pb.Prepare
    fleet: FakeFleet
    started: bool = False
    exited: pb.Exited | None = None
    task: asyncio.Task[None] | None = None
    rank: int = -1
    ips: list[str] = field(default_factory=list)
    ipv4s: list[str] = field(default_factory=list)
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    channel: PreambleChannel | None = None
    spooled: int = 0
    told: bool = False              # to stop

    @property
    def key(self) -> Key:
        return self.prepare.assignment, self.prepare.rank

    async def rpc(self, name: str, request: Any, key: str = "") -> Any:
        """One request as the stock runner would send it."""
        assert self.channel is not None
        response = message_factory.GetMessageClass(SERVICE.methods_by_name[name].output_type)
        metadata = {"x-modal-client-version": "1.6.4", "x-modal-client-type": "3"} | ({"x-idempotency-key": key} if key else {})
        method = UnaryUnaryMethod(self.channel, f"/modal.client.ModalClient/{name}", type(request), response)
        return await method(request, metadata=metadata)

    async def cancelled(self) -> list[str]:
        """Heartbeats until one brings cancellations."""
        while True:
            response = await self.rpc("ContainerHeartbeat", api_pb2.ContainerHeartbeatRequest(canceled_inputs_return_outputs_v2=True))
            if response.cancel_input_event.input_ids:
                return list(response.cancel_input_event.input_ids)

    def write(self, text: str) -> None:
        """A line of the container's output, as its shim's spool brings it."""
        record = pb.LogRecord(stream=1, time_ns=time.time_ns(), data=text.encode())
        offset, self.spooled = self.spooled, self.spooled + SPOOL_HEADER + len(record.data)
        self.fleet.say(logs=pb.Logs(assignment=self.key[0], rank=self.key[1], offset=offset, records=[record], end_offset=self.spooled))

    async def run(self) -> None:
        code, signal, oom = 0, 0, False
        try:
            await self._live()
        except Died as death:
            code, signal, oom = death.code, death.signal, death.oom
        except asyncio.CancelledError:
            signal = 9
        except (GRPCError, StreamTerminatedError, OSError):
            code = 1
        if self.channel is not None:
            self.channel.close()
        self.exited = pb.Exited(
            assignment=self.key[0], rank=self.key[1], code=code, signal=signal, oom_killed=oom, boottime_ms=boottime_ms(),
            stopped=self.told, memory_limit_mib=128 if oom else 0, memory_peak_mib=128 if oom else 0,
        )  # fmt: skip
        self.fleet.beat()       # a test may have set the server's clock since the last
        self.fleet.say(exited=self.exited)

    async def _live(self) -> None:
        p = self.prepare
        line = f"PHALANX/1 task {p.task_id} {p.assignment} {p.task_secret}"
        self.channel = PreambleChannel(str(self.fleet.control_plane.tasks_socket), line)
        await self.fleet.before_hello(self)
        await self.rpc("ContainerHello", Empty())
        await self.fleet.on_import(self)
        if self.fleet.clustered(self):
            hello = await self.rpc("TaskClusterHello", api_pb2.TaskClusterHelloRequest(task_id=p.task_id, container_ip=f"fdaa::{p.rank}"))
            self.rank, self.ips, self.ipv4s = hello.cluster_rank, list(hello.container_ips), list(hello.container_ipv4_ips)
        while True:
            response = await self.rpc("FunctionGetInputs", api_pb2.FunctionGetInputsRequest())
            for item in response.inputs:
                if item.kill_switch:
                    return
                await self._work(item)
                if self.fleet.definition(self).single_use_containers:
                    return

    async def _work(self, item: Any) -> None:
        self.fleet.ran.append((self.key, item.input_id, item.retry_count))
        working = asyncio.ensure_future(self.fleet.program(self, item))
        interrupted = asyncio.ensure_future(self.interrupted.wait())
        done, _ = await asyncio.wait({working, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if working not in done:
            working.cancel()
            raise Died(code=130)
        try:
            value = working.result()
            result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS, data=pickle.dumps(value))
        except Died:
            raise
        except Cancelled:
            result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TERMINATED)
        except Exception as error:
            result = api_pb2.GenericResult(
                status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE, exception=repr(error), data=pickle.dumps(error)
            )
        await self.rpc("FunctionPutOutputs", api_pb2.FunctionPutOutputsRequest(outputs=[
            api_pb2.FunctionPutOutputsItem(
                input_id=item.input_id, result=result, data_format=api_pb2.DATA_FORMAT_PICKLE, retry_count=item.retry_count
            )
        ]))  # fmt: skip


async def return_rank(rank: FakeRank, item: Any) -> Any:
    return rank.prepare.rank


async def nothing(rank: FakeRank) -> None:
    return None


class FakeFleet:
    """One agent process with `nodes` nodes. Attributes are the faults: set them before, or while, things run."""

    def __init__(
        self, control_plane: ControlPlane, nodes: int = 2, gpu_type: str = "any", gpu_count: int = 8, prefix: str = "node"
    ) -> None:
        self.control_plane = control_plane
        self.facts = [
            pb.NodeFacts(
                node_id=f"{prefix}-{n}", hostname=f"{prefix}-{n}", gpu_type=gpu_type, gpu_count=gpu_count, cpu_milli=8000,
                memory_mib=16_000, simulated=True, runtime="fake", python_versions=["3.9", "3.10", "3.11", "3.12", "3.13"],
            )
            for n in range(nodes)
        ]  # fmt: skip
        self.agent_id = f"{prefix}-agent"
        self.program: Program = return_rank
        self.before_hello: Callable[[FakeRank], Awaitable[None]] = nothing
        self.on_import: Callable[[FakeRank], Awaitable[None]] = nothing
        self.refuse: Callable[[pb.Prepare], pb.Refusal | None] = lambda prepare: None
        self.remains: Callable[[pb.Release], str] = lambda release: ""
        self.unreachable: Callable[[pb.CheckPeers], list[str]] = lambda check: []
        self.deaf_to_stop = self.deaf_to_release = False
        self.on_mark = self.answer_mark
        self.silent = False
        self.boot_id, self.peer_address = "boot", ""
        self.answered_ms = self.said_away_ms = 0
        self.ignores_interrupts = False                     # programs go on until they are killed
        self.never_prepares: set[str] = set()               # nodes that pull for ever
        self.ranks: dict[Key, FakeRank] = {}
        self.ran: list[tuple[Key, str, int]] = []        # every delivery to every rank
        self.heard: list[pb.ToAgent] = []
        self._channel: PreambleChannel | None = None
        self._outgoing: asyncio.Queue[pb.FromAgent] = asyncio.Queue()
        self._session: asyncio.Task[None] | None = None
        self.joined = asyncio.Event()

    # ------------------------------------------------------------ for tests, from their own thread

    def start(self) -> None:
        """Join, and return when the server has taken the nodes in."""
        self.control_plane.call(self._start)

    def stop(self) -> None:
        """Leave like an agent that is killed: containers go on until their tasks are cancelled."""
        self.control_plane.call(self._stop)

    def outlive(self) -> None:
        """The control plane was stopped, and with it the event loop in which this fleet is played: what it has goes on all the same."""
        self._session = self._channel = None
        self._outgoing, self.joined = asyncio.Queue(), asyncio.Event()
        for rank in self.ranks.values():
            rank.task = rank.exited = None

    def lose_agent(self) -> None:
        """Cut the session only."""
        self.control_plane.call(self._cut)

    def starts(self, kind: str = "start") -> list[Any]:
        """What the agent was told, of one kind."""
        return [getattr(message, kind) for message in self.heard if message.WhichOneof("message") == kind]

    # ------------------------------------------------------------ the agent

    async def _start(self) -> None:
        self.joined.clear()
        self._session = asyncio.ensure_future(self._serve())
        await asyncio.wait_for(self.joined.wait(), 10)

    async def _stop(self) -> None:
        await self._cut()
        tasks = [rank.task for rank in self.ranks.values() if rank.task is not None and not rank.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cut(self) -> None:
        if self._session is not None:
            self._session.cancel()
            await asyncio.gather(self._session, return_exceptions=True)
        if self._channel is not None:
            self._channel.close()

    def say(self, **message: Any) -> None:
        self._outgoing.put_nowait(pb.FromAgent(**message))

    def definition(self, rank: FakeRank) -> Any:
        return api_pb2.ContainerArguments.FromString(rank.prepare.container_arguments).function_def

    def beat(self) -> None:
        """A heartbeat. `silent`: it gets stuck on the way."""
        if not self.silent:
            self.say(heartbeat=pb.Heartbeat(boottime_ms=boottime_ms(), answered_ms=self.answered_ms, said_away_ms=self.said_away_ms))

    def clustered(self, rank: FakeRank) -> bool:
        return bool(self.definition(rank)._experimental_group_size > 0)

    async def _serve(self) -> None:
        self._channel = PreambleChannel(str(self.control_plane.tasks_socket), "PHALANX/1 agent")
        method = StreamStreamMethod(self._channel, "/phalanx.agent.v1.Agents/Session", pb.FromAgent, pb.ToAgent)
        adopted = [
            pb.Adopted(assignment=r.key[0], rank=r.key[1], task_id=r.prepare.task_id, node_id=r.prepare.node_id, ended=r.exited is not None)
            for r in self.ranks.values()
        ]
        async with method.open() as stream:
            register = pb.Register(
                protocol_version=1, agent_id=self.agent_id, boot_id=self.boot_id, engine="fake", nodes=self.facts, adopted=adopted,
                secret=self.control_plane.config.join_secret, boottime_ms=boottime_ms(), peer_address=self.peer_address,
            )  # fmt: skip
            await stream.send_message(pb.FromAgent(register=register))
            sender = asyncio.ensure_future(self._send(stream))
            beating = asyncio.ensure_future(self._beat())
            for rank in self.ranks.values():
                if rank.exited is not None:
                    self.say(exited=rank.exited)
            try:
                while (message := await stream.recv_message()) is not None:
                    self.heard.append(message)
                    self._hear(message)
            finally:
                sender.cancel()
                beating.cancel()

    async def _beat(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(1)

    async def _send(self, stream: Any) -> None:
        while True:
            await stream.send_message(await self._outgoing.get())

    def _hear(self, message: pb.ToAgent) -> None:
        kind = message.WhichOneof("message")
        if kind == "welcome":
            self.joined.set()
        elif kind == "beat_answer":
            self.answered_ms = message.beat_answer.boottime_ms
        elif kind == "prepare":
            self._prepare(message.prepare)
        elif kind == "start":
            self._begin(message.start)
        elif kind == "check_peers":
            check = message.check_peers
            self.say(reached=pb.Reached(assignment=check.assignment, rank=check.rank, unreachable=self.unreachable(check)))
        elif kind == "stop":
            asyncio.ensure_future(self._end(message.stop))
        elif kind == "release" and not self.deaf_to_release:
            self._release(message.release)
        elif kind == "mark_logs":
            self.on_mark(message.mark_logs)

    def answer_mark(self, mark: pb.MarkLogs) -> None:
        self.say(logs_marked=pb.LogsMarked(assignment=mark.assignment, rank=mark.rank, number=mark.number))

    def _prepare(self, prepare: pb.Prepare) -> None:
        if prepare.node_id in self.never_prepares:
            return
        refusal = self.refuse(prepare)
        key = prepare.assignment, prepare.rank
        if refusal is not None:
            self.say(prepared=pb.Prepared(assignment=key[0], rank=key[1], refusal=refusal))
            return
        self.ranks.setdefault(key, FakeRank(prepare, self))
        address = f"{key[0] % 60_000:x}:{key[1]:x}"
        ipv4 = f"10.{key[0] % 250}.{key[1] // 250}.{key[1] % 250}"
        self.say(prepared=pb.Prepared(assignment=key[0], rank=key[1], ipv6=f"fdaa::{address}", ipv4=ipv4))

    def _begin(self, start: pb.Start) -> None:
        rank = self.ranks[(start.assignment, start.rank)]
        if not rank.started:
            rank.started = True
            rank.task = asyncio.ensure_future(rank.run())
            self.say(started=pb.Started(assignment=start.assignment, rank=start.rank, boottime_ms=boottime_ms()))

    async def _end(self, stop: pb.Stop) -> None:
        rank = self.ranks.get((stop.assignment, stop.rank))
        if rank is None or rank.task is None:
            return
        rank.told = True
        if self.deaf_to_stop:
            return
        if stop.signal == 9:
            rank.task.cancel()
            return
        if not self.ignores_interrupts:
            rank.interrupted.set()
        await asyncio.sleep(stop.grace_ms / 1000)
        rank.task.cancel()

    def _release(self, release: pb.Release) -> None:
        rank = self.ranks.pop((release.assignment, release.rank), None)
        if rank is not None and rank.task is not None:
            rank.task.cancel()
        self.say(released=pb.Released(assignment=release.assignment, rank=release.rank, remains=self.remains(release)))


def boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
