"""Kueue's public performance configurations through the whole control plane in real time: same arrivals, quotas, cohorts; 1 CPU = 1 node.

    python benchmarks/kueue_control_plane.py FOLDER/baseline-generator.yaml [--scale 0.1] [--reuse]

Real: the server process and its front, `durability: full`, the client's services (FunctionCreate, FunctionMap, FunctionPutInputs,
FunctionGetOutputs), the agents' session, the containers' services (ContainerHello, TaskClusterHello, FunctionGetInputs,
FunctionPutOutputs) on a connection for every rank. Fake: nodes, containers and the work, which is a sleep of the workload's run time.

A queue is an app; a class of workloads in it is one clustered function of its size, priority and queue; a workload is one input of it, put
at its time of creation. By default every workload is an assignment of its own (single_use_containers). With --reuse a cluster goes on to
the next input of its function, as it does on Modal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import json
import os
import platform
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from google.protobuf import message_factory
from kueue import Generator, Workload, read_generator
from kueue_fakes import HEADERS, RPC
from light_wire import Wire, header
from modal_proto import api_pb2

from phalanx.config import Config
from phalanx.paths import Paths
from phalanx.scheduler.simulation.measure import at

SERVICE = api_pb2.DESCRIPTOR.services_by_name["ModalClient"]
NODES_PER_AGENT = 500
LOOK_S = 2.0            # between two looks at the results of one call


@dataclasses.dataclass
class Queue:
    """One class of workloads in one queue: a function, and a call of it that takes the workloads as they are created."""

    name: str
    kind: Workload
    call_id: str = ""
    created: dict[int, float] = dataclasses.field(default_factory=dict)     # workload -> wall time at which it was put
    started: dict[int, float] = dataclasses.field(default_factory=dict)     # -> at which its rank 0 had it
    ended: dict[int, float] = dataclasses.field(default_factory=dict)


class Plane:
    """Front, server and fake agents as processes, on a state folder of their own."""

    def __init__(self, folder: Path, generator: Generator, options: argparse.Namespace) -> None:
        self.paths = Paths(folder / "state")
        self.config = Config(allow_cpu_clusters=True, durability=options.durability, quotas=quotas(generator)).with_secrets()
        self.config.save(self.paths.config)
        self.nodes = generator.nodes
        self.agents = options.agents
        self.profile = options.profile
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.port = 0
        self.counts_from: dict[str, float] = {}

    def start(self) -> None:
        state = str(self.paths.state)
        front = self._start("front", ["-m", "phalanx.front", "--state", state, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE)
        assert front.stdout is not None
        self.port = int(json.loads(front.stdout.readline())["listen"].rpartition(":")[2])
        profiler = ["-m", "cProfile", "-o", self.profile] if self.profile else []
        self._start("server", [*profiler, "-m", "phalanx.serve", "--state", state])
        self._until(lambda: (self.paths.run / "server.json").exists())
        each = -(-self.nodes // self.agents)
        fakes = str(Path(__file__).with_name("kueue_fakes.py"))
        for n, first in enumerate(range(0, self.nodes, each)):
            count = min(each, self.nodes - first)
            arguments = ["--first", str(first), "--nodes", str(count), "--agents", str(-(-count // NODES_PER_AGENT))]
            self._start(f"agents-{n}", [fakes, str(self.paths.tasks_socket), self.config.join_secret, *arguments])

    def stop(self) -> None:
        for name in sorted(self.processes, reverse=True):       # server, front, agents
            process = self.processes[name]
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
        shutil.rmtree(self.paths.run, ignore_errors=True)

    def cpu_s(self) -> dict[str, float]:
        """CPU time of every process since the functions were made, and of the server's loop, its main thread."""
        found = {name: _cpu_s(f"/proc/{process.pid}") for name, process in self.processes.items()}
        server = self.processes["server"].pid
        found["the server's loop"] = _cpu_s(f"/proc/{server}/task/{server}")
        return {name: seconds - self.counts_from.get(name, 0.0) for name, seconds in found.items()}

    def memory_mib(self) -> int:
        """The server's, at its highest."""
        status = Path(f"/proc/{self.processes['server'].pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024

    def _start(self, name: str, arguments: list[str], stdout: int | None = None) -> subprocess.Popen[str]:
        log = (self.paths.state / f"{name}.log").open("w")
        process = subprocess.Popen([sys.executable, *arguments], stdout=stdout or log, stderr=log, text=True)
        self.processes[name] = process
        return process

    def _until(self, done: Any) -> None:
        ends = time.monotonic() + 60
        while not done():
            if time.monotonic() > ends or any(process.poll() is not None for process in self.processes.values()):
                raise SystemExit(f"a process did not come up: see the logs in {self.paths.state}")
            time.sleep(0.05)


def _cpu_s(folder: str) -> float:
    """Of a process or a thread in /proc."""
    fields = Path(folder, "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quotas(generator: Generator) -> dict[str, Any]:
    """As the configuration has them: by the queue that functions name."""
    return {q.workspace: {"nodes": q.nodes, "cohort": q.cohort, "borrow": q.borrow} for q in generator.quotas()}


class Client:
    """One client connection."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @classmethod
    async def connect(cls, plane: Plane) -> Client:
        said = {**HEADERS, "x-modal-python-version": "3.11.7", "x-modal-token-id": plane.config.token_id,
                "x-modal-token-secret": plane.config.token_secret}  # fmt: skip
        return cls(await Wire.to_port("127.0.0.1", plane.port, said))

    async def rpc(self, name: str, request: Any, key: str = "") -> Any:
        response = message_factory.GetMessageClass(SERVICE.methods_by_name[name].output_type)
        answer = await self._wire.call(RPC + name, request.SerializeToString(), header("x-idempotency-key", key) if key else b"")
        return response.FromString(answer)


class Run:
    """The clients: makes the functions, creates the workloads at their times, collects the results."""

    def __init__(self, client: Client, generator: Generator, reuse: bool, scale: float) -> None:
        self._client = client
        self._reuse = reuse
        self.queues = queues_of(generator, scale)
        self.total = sum(queue.kind.count for queue in self.queues)
        self.began = self.over = 0.0
        self.late_s = 0.0       # the most that a workload was put after its time

    async def prepare(self) -> None:
        for name, queues in groupby(self.queues, key=lambda queue: queue.name):
            await self._deploy(name, list(queues))

    async def _deploy(self, name: str, queues: list[Queue]) -> None:
        """An app for each queue. Deployed ones need no heartbeat of their client."""
        created = await self._client.rpc("AppCreate", api_pb2.AppCreateRequest(app_state=api_pb2.APP_STATE_INITIALIZING))
        made = [(queue, await self._client.rpc("FunctionCreate", self._function(queue, created.app_id))) for queue in queues]
        await self._client.rpc("AppPublish", api_pb2.AppPublishRequest(
            app_id=created.app_id, app_state=api_pb2.APP_STATE_DEPLOYED, name=name.replace("/", "-"),
            function_ids={queue.kind.name: function.function_id for queue, function in made},
            definition_ids={function.function_id: function.handle_metadata.definition_id for _, function in made},
        ))  # fmt: skip
        for queue, function in made:
            call = api_pb2.FunctionMapRequest(
                function_id=function.function_id, function_call_type=api_pb2.FUNCTION_CALL_TYPE_MAP,
                function_call_invocation_type=api_pb2.FUNCTION_CALL_INVOCATION_TYPE_SYNC,
            )  # fmt: skip
            queue.call_id = (await self._client.rpc("FunctionMap", call)).function_call_id

    async def run(self) -> None:
        """Until every workload has its result."""
        self.began = time.time()
        await asyncio.gather(*(self._collect(queue, n) for n, queue in enumerate(self.queues)), self._create_all())
        self.over = max(max(queue.ended.values()) for queue in self.queues)

    def _function(self, queue: Queue, app_id: str) -> Any:
        definition = api_pb2.Function(
            module_name="kueue", function_name=queue.kind.name, timeout_secs=600, i6pn_enabled=True,
            function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION, single_use_containers=not self._reuse,
            experimental_options={"queue": queue.name, "priority": str(queue.kind.priority)},
        )  # fmt: skip
        definition._experimental_group_size = queue.kind.request
        return api_pb2.FunctionCreateRequest(app_id=app_id, function=definition)

    async def _create_all(self) -> None:
        due = sorted((i * queue.kind.every_ms, q, i) for q, queue in enumerate(self.queues) for i in range(queue.kind.count))
        puts = set()
        for at_ms, q, i in due:
            wait_s = self.began + at_ms / 1000 - time.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self.late_s = max(self.late_s, -wait_s)
            put = asyncio.ensure_future(self._put(self.queues[q], i))
            puts.add(put)
            put.add_done_callback(puts.discard)
        await asyncio.gather(*puts)

    async def _put(self, queue: Queue, i: int) -> None:
        queue.created[i] = time.time()
        item = api_pb2.FunctionPutInputsItem(
            idx=i, input=api_pb2.FunctionInput(args=str(queue.kind.runtime_ms).encode(), data_format=api_pb2.DATA_FORMAT_PICKLE)
        )
        request = api_pb2.FunctionPutInputsRequest(function_call_id=queue.call_id, inputs=[item])
        await self._client.rpc("FunctionPutInputs", request, key=f"{queue.call_id}-{i}")

    async def _collect(self, queue: Queue, n: int) -> None:
        last = "0-0"
        look_s = max(LOOK_S, len(self.queues) / 300)
        await asyncio.sleep(look_s * n / len(self.queues))      # not all at the same moment
        while len(queue.ended) < queue.kind.count:
            request = api_pb2.FunctionGetOutputsRequest(function_call_id=queue.call_id, last_entry_id=last, max_values=1000, timeout=0)
            answer = await self._client.rpc("FunctionGetOutputs", request)
            last = answer.last_entry_id
            for output in answer.outputs:
                if output.result.status != api_pb2.GenericResult.GENERIC_STATUS_SUCCESS:
                    raise SystemExit(f"workload {output.idx} of {queue.name} failed: {output.result.exception}")
                queue.started[output.idx], queue.ended[output.idx] = output.input_started_at, output.output_created_at
            await asyncio.sleep(look_s)


def queues_of(generator: Generator, scale: float) -> list[Queue]:
    """Every class of every queue. A scale below 1 leaves fewer workloads of each: a shorter run of the same load."""
    found = []
    for n, quota in enumerate(generator.quotas()):
        for kind in generator.workloads:
            count = int((n + 1) * kind.count * scale) - int(n * kind.count * scale)
            if count:
                found.append(Queue(quota.workspace, dataclasses.replace(kind, count=count)))
    return found


async def measure(plane: Plane, generator: Generator, options: argparse.Namespace) -> Run:
    run = Run(await Client.connect(plane), generator, options.reuse, options.scale)
    await run.prepare()
    plane.counts_from = plane.cpu_s()
    gc.collect()
    gc.freeze()
    await run.run()
    return run


def report(run: Run, generator: Generator, plane: Plane, cpu_s: dict[str, float], source: str) -> None:
    wall = run.over - run.began
    work = sum(q.kind.count * q.kind.request * q.kind.runtime_ms for q in run.queues) / 1000
    arrivals = max(q.kind.count * q.kind.every_ms for q in run.queues) / 1000
    print(f"{source}: {run.total} workloads, {generator.nodes} nodes, {generator.cohorts * generator.queues} queues, "
          f"{sum(q.kind.count * q.kind.request for q in run.queues)} ranks")  # fmt: skip
    print(f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, grpclib {version('grpclib')}, h2 {version('h2')}, "
          f"modal {version('modal')}, SQLite {sqlite3.sqlite_version}, durability {plane.config.durability}")  # fmt: skip
    print(f"all done after {wall:.1f} s; arrivals take {arrivals:.1f} s, the work alone {work / generator.nodes:.1f} s; "
          f"usage {100 * work / generator.nodes / wall:.1f} %")  # fmt: skip
    print("| class | size | mean wait s | p50 | p99 | max |\n|---|---|---|---|---|---|")
    for kind in sorted(generator.workloads, key=lambda k: -k.request):
        waits = sorted(q.started[i] - q.created[i] for q in run.queues if q.kind.name == kind.name for i in q.created)
        figures = " | ".join(f"{value:.1f}" for value in (sum(waits) / len(waits), at(waits, 0.5), at(waits, 0.99), waits[-1]))
        print(f"| {kind.name} | {kind.request} | {figures} |")
    used = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(cpu_s.items()))
    print(f"CPU: {used}, clients {time.process_time():.0f} s; {1000 * cpu_s['server'] / run.total:.2f} ms of the server a workload; "
          f"server at most {plane.memory_mib()} MiB; a workload was put at most {run.late_s:.2f} s late")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generator", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="this share of each class's workloads")
    parser.add_argument("--reuse", action="store_true", help="clusters go on to the next input of their function")
    parser.add_argument("--agents", type=int, default=1, help="processes that carry the nodes")
    parser.add_argument("--durability", default="full", choices=["full", "process"])
    parser.add_argument("--profile", default="", metavar="FILE", help="cProfile of the server")
    parser.add_argument("--keep", action="store_true", help="keep the state folder, with the logs")
    options = parser.parse_args()
    generator = read_generator(options.generator)
    with contextlib.suppress(ValueError, OSError):      # as root; otherwise what is allowed must do
        most = max(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 2 * generator.nodes + 4096)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    folder = Path(tempfile.mkdtemp(prefix="pk-"))
    plane = Plane(folder, generator, options)
    try:
        plane.start()
        run = asyncio.run(measure(plane, generator, options))
        report(run, generator, plane, plane.cpu_s(), options.generator.name)
    finally:
        plane.stop()
        if options.keep:
            print(f"state and logs: {plane.paths.state}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
