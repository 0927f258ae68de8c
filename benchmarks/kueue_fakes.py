"""Fake agents for benchmarks/kueue_control_plane.py: one process, several agents, many nodes, ranks that speak the container RPCs.

    python benchmarks/kueue_fakes.py SOCKET SECRET --first 0 --nodes 300 --agents 2

Everything goes over the real services: the agents' session, and one connection with its preamble for every rank, as its shim would make
it. A rank says ContainerHello, TaskClusterHello, FunctionGetInputs, sleeps as long as its input says (milliseconds, in its arguments) and
puts its output. A rank of a single-use function then ends, others ask for the next input.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import time
from typing import Any

from light_wire import Wire, WireError
from modal_proto import api_pb2

from phalanx.protocol import agent_pb2 as pb

RPC = "/modal.client.ModalClient/"
HEADERS = {"x-modal-client-version": "1.6.4", "x-modal-client-type": "3"}
HEARTBEAT_S = 5
Key = tuple[int, int]
"""(assignment, rank)"""


class Rank:
    """One container."""

    def __init__(self, agent: Agent, prepare: pb.Prepare) -> None:
        self._agent = agent
        self._prepare = prepare
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.task is None:
            self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        signal, wire = 0, None
        p = self._prepare
        try:
            wire = await Wire.to_socket(self._agent.socket, f"PHALANX/1 task {p.task_id} {p.assignment} {p.task_secret}", HEADERS)
            await self._live(wire)
        except asyncio.CancelledError:
            signal = 9
        except WireError:
            signal = 15
        finally:
            if wire is not None:
                wire.close()
        self._agent.say(exited=pb.Exited(assignment=p.assignment, rank=p.rank, signal=signal, boottime_ms=boottime_ms()))

    async def _live(self, wire: Wire) -> None:
        p = self._prepare
        await wire.call(RPC + "ContainerHello", b"")
        hello = api_pb2.TaskClusterHelloRequest(task_id=p.task_id, container_ip=f"fdaa::{p.rank}")
        await wire.call(RPC + "TaskClusterHello", hello.SerializeToString())
        single_use = self._agent.is_single_use(p)
        while True:
            answer = api_pb2.FunctionGetInputsResponse.FromString(await wire.call(RPC + "FunctionGetInputs", b""))
            for item in answer.inputs:
                if item.kill_switch:
                    return
                started = time.time()
                await asyncio.sleep(int(item.input.args) / 1000)
                result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS, data=b"N.")
                output = api_pb2.FunctionPutOutputsItem(
                    input_id=item.input_id, result=result, data_format=api_pb2.DATA_FORMAT_PICKLE, retry_count=item.retry_count,
                    input_started_at=started, output_created_at=time.time(),
                )  # fmt: skip
                await wire.call(RPC + "FunctionPutOutputs", api_pb2.FunctionPutOutputsRequest(outputs=[output]).SerializeToString())
                if single_use:
                    return


class Agent:
    """One session, which carries its nodes."""

    def __init__(self, socket: str, secret: str, first: int, nodes: int) -> None:
        self.socket = socket
        self._secret = secret
        self._facts = [
            pb.NodeFacts(
                node_id=f"node-{n:05}", hostname=f"node-{n:05}", cpu_milli=1000, memory_mib=64_000, simulated=True, runtime="fake",
                network="cluster", python_versions=["3.9", "3.10", "3.11", "3.12", "3.13"],
            )
            for n in range(first, first + nodes)
        ]  # fmt: skip
        self._agent_id = f"agent-{first:05}"
        self._ranks: dict[Key, Rank] = {}
        self._single_use: dict[str, bool] = {}
        self._send: Any = None
        self.ended = asyncio.Event()

    async def join(self) -> None:
        wire = await Wire.to_socket(self.socket, "PHALANX/1 agent")
        self._send = wire.open("/phalanx.agent.v1.Agents/Session", self._hear)
        self.say(register=pb.Register(
            protocol_version=1, agent_id=self._agent_id, boot_id="boot", engine="fake", nodes=self._facts, secret=self._secret
        ))  # fmt: skip
        while not self.ended.is_set():
            self.say(heartbeat=pb.Heartbeat(boottime_ms=boottime_ms()))
            await asyncio.sleep(HEARTBEAT_S)

    def say(self, **message: Any) -> None:
        if not self.ended.is_set():
            self._send(pb.FromAgent(**message).SerializeToString())

    def is_single_use(self, prepare: pb.Prepare) -> bool:
        """Read once for each function."""
        if prepare.function_name not in self._single_use:
            definition = api_pb2.ContainerArguments.FromString(prepare.container_arguments).function_def
            self._single_use[prepare.function_name] = definition.single_use_containers
        return self._single_use[prepare.function_name]

    def _hear(self, data: bytes | None) -> None:
        if data is None:
            self.ended.set()
            return
        message = pb.ToAgent.FromString(data)
        kind = message.WhichOneof("message")
        if kind == "prepare":
            p = message.prepare
            key = p.assignment, p.rank
            self._ranks.setdefault(key, Rank(self, p))
            ipv4 = f"10.{key[0] % 250}.{key[1] // 250}.{key[1] % 250}"
            self.say(prepared=pb.Prepared(assignment=key[0], rank=key[1], ipv6=f"fdaa::{key[0] % 60_000:x}:{key[1]:x}", ipv4=ipv4))
        elif kind == "start":
            self._ranks[message.start.assignment, message.start.rank].start()
        elif kind == "check_peers":
            self.say(reached=pb.Reached(assignment=message.check_peers.assignment, rank=message.check_peers.rank))
        elif kind == "stop":
            rank = self._ranks.get((message.stop.assignment, message.stop.rank))
            if rank is not None and rank.task is not None:
                rank.task.cancel()
        elif kind == "release":
            key = message.release.assignment, message.release.rank
            rank = self._ranks.pop(key, None)
            if rank is not None and rank.task is not None:
                rank.task.cancel()
            self.say(released=pb.Released(assignment=key[0], rank=key[1]))


def boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


async def serve(options: argparse.Namespace) -> None:
    """Until the server closes the sessions."""
    each = -(-options.nodes // options.agents)
    agents = []
    for first in range(0, options.nodes, each):
        agents.append(Agent(options.socket, options.secret, options.first + first, min(each, options.nodes - first)))
    sessions = [asyncio.ensure_future(agent.join()) for agent in agents]
    await asyncio.gather(*(agent.ended.wait() for agent in agents))
    for session in sessions:
        session.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("socket")
    parser.add_argument("secret")
    parser.add_argument("--first", type=int, default=0, help="number of the first node")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--agents", type=int, default=1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.freeze()
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
