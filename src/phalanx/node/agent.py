"""The agent: carries out what the server says on this machine's nodes, and tells it what happens."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Coroutine
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from phalanx.engines import local
from phalanx.model.node import UNKILLABLE
from phalanx.paths import Paths
from phalanx.protocol import agent_pb2

from . import gpus, machine
from .addresses import Ranges, agent_subnet
from .bridge import bridge_name
from .choose import Choice, choose
from .container import Container, dismiss, left_behind
from .image import default_image, nameservers
from .launching import Launcher, LaunchFailed
from .layers import Layers
from .leases import Leases
from .outbound import close_way, open_way
from .outfit import Fleet, names_begin
from .peers import BadAddress
from .preparing import Preparer, Refused
from .remains import Left, Remains
from .saying import say, say_failure
from .session import ServerAway, Session, TasksChannel
from .spec import Spec, write_whole

PROTOCOL = 1
_BACKOFF_SECONDS = (0.05, 1.0)
_LEAVING_PATIENCE_SECONDS = 2.0     # for what hung in the kernel, and may have come free by now
_LAST_GRACE_MS = 5_000        # what containers get when the agent is asked to go and nobody said what their function's grace is

Key = tuple[int, int]


class NotWelcome(Exception):
    """The server does not take this agent."""


class Agent:
    """`settings`: nodes, gpus, gpu, runtime, join_secret, extra and peer_listen of the configuration. `tasks_socket`: the control plane's,
    where it is not this state folder's; `node_name` begins the names of virtual nodes: several agents need several."""

    def __init__(
        self, paths: Paths, nodes: int, gpus: int, gpu: str, runtime: str, join_secret: str, extra: dict[str, str],
        peer_listen: str = "127.0.0.1:0", tasks_socket: Path | None = None, node_name: str = "node",
    ) -> None:
        self.tasks_socket, self.peer_listen = tasks_socket or paths.tasks_socket, peer_listen
        self.paths, self.runtime_wanted, self.secret, self.extra = paths, runtime, join_secret, extra
        self.machine = machine.look()
        supplied = (local.renamed(node, node_name) for node in local.nodes(self.machine, nodes, gpus, gpu))
        self.nodes = {node.node_id: node for node in supplied}
        self.containers: dict[Key, Container] = {}
        self.gone: set[Key] = set()                   # stopped before they were prepared: a late Prepare changes nothing
        self.session: Session | None = None
        self.remains = Remains(self._say_state)
        self._jobs: set[asyncio.Task[None]] = set()
        self._preparing: dict[Key, asyncio.Task[None]] = {}
        self._bridging: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    async def clean(self) -> None:
        """Only what `run` does at its end: for a fleet whose agent was killed. Raises LaunchFailed."""
        self._make_folders()
        self.agent_id = self._own_id()
        await self._choose_runtime()
        await self._adopt()
        await self._leave()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT: then stop all containers and leave nothing. Raises NotWelcome, NoRuntime, LaunchFailed;
        the last also when the launcher ends meanwhile: containers live on for the next agent."""
        self._make_folders()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leaving.set)
        self.agent_id = self._own_id()
        await self._choose_runtime()
        await self._adopt()
        try:
            await self.leases.peers.open(self.peer_listen, self.paths.node / "peers.port")
        except BadAddress:
            if not self.containers:     # nobody starts this agent again; what it had found would need launcher and sockets
                await self._be_gone()
            raise
        self.preparer.zygotes.warm_as_before()
        serving = asyncio.create_task(self._serve())
        watching = asyncio.create_task(self.leases.watch())
        tidying = asyncio.create_task(self.remains.watch())
        tidying.add_done_callback(say_failure)
        watching.add_done_callback(say_failure)
        leaving = asyncio.create_task(self._leaving.wait())
        launcher_gone = asyncio.create_task(self.launcher.gone())
        await asyncio.wait({serving, leaving, launcher_gone}, return_when=asyncio.FIRST_COMPLETED)
        without_launcher = launcher_gone.done() and not self._leaving.is_set()
        for task in (serving, watching, tidying, leaving, launcher_gone):
            task.cancel()
        await asyncio.wait({serving, watching, tidying, leaving, launcher_gone})
        if without_launcher or not serving.cancelled():
            await self._drop_what_is_half_made()
        if without_launcher:
            # Namespaces may have died with it: an agent that starts makes all of that, and takes the containers over.
            raise LaunchFailed("the launcher has ended: this agent ends too, and the next one starts another")
        if not serving.cancelled() and not self.containers:
            await self.launcher.leave()
        if not serving.cancelled():
            serving.result()
        self.leases.peers.close()
        await self._leave()

    # ---------------------------------------------------------------- beginning and end

    def _make_folders(self) -> None:
        self.paths.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.paths.agents_run.mkdir(mode=0o700, exist_ok=True)
        for name in ("containers", "layers", "images", "zygotes"):
            (self.paths.node / name).mkdir(parents=True, exist_ok=True)
        self.paths.node.chmod(0o700)

    def _own_id(self) -> str:
        path = self.paths.node / "agent-id"
        if not path.exists():
            write_whole(str(path), f"ag-{uuid.uuid4().hex[:16]}")
        return path.read_text().strip()

    def _launcher(self, prefix: tuple[str, ...] = ()) -> Launcher:
        return Launcher(self.paths.agents_run / "launcher.sock", self.paths.node / "launcher.log", prefix)

    async def _choose_runtime(self) -> None:
        image = await asyncio.to_thread(default_image, self.paths.node / "images", self.extra.get("image.site_packages", ""))
        trial = {
            "folder": str(self.paths.node / "trial"), "control_socket": str(self.paths.agents_run / "trial.ctl"),
            "layers": [image.skeleton], "mounts": [asdict(mount) for mount in image.mounts]}
        self.choice: Choice = await choose(self.runtime_wanted, self._launcher, trial)
        self.launcher = self._launcher(self.choice.prefix)
        await self.launcher.ready()
        guarantees = dict(self.choice.guarantees)
        if self.choice.rootless:
            missing = await open_way(self.launcher, self.paths.agents_run)
            guarantees["network"] = f"yes among containers; {missing}" if missing else "yes"
        self.choice = replace(self.choice, guarantees=guarantees)
        simulated = all(node.simulated for node in self.nodes.values())
        self.fleet = Fleet(
            agent_id=self.agent_id, runtime=self.choice.runtime, program=self.choice.program, rootless=self.choice.rootless,
            single_user=self.choice.single_user, containers=self.paths.node / "containers", run=self.paths.agents_run,
            tasks_socket=self.tasks_socket, image=image, boot_id=machine.boot_id(),
            simulated=simulated, loader={} if simulated else gpus.loader_environment(), extra=self.extra)
        self.preparer = Preparer(self.fleet, self.launcher, Layers(self.paths.node / "layers"), self.nodes, self.remains)
        say(f"runtime {self.choice.runtime}: {self.choice.reason}")

    async def _adopt(self) -> None:
        """Before anything is registered: take over living containers, clean up after dead ones."""
        for folder in left_behind(self.fleet.containers):
            try:
                spec = Spec.load(str(folder))
            except (OSError, ValueError, TypeError, KeyError) as error:
                say(f"{folder} can't be read ({error}): removed, with what it was about")
                shutil.rmtree(folder, ignore_errors=True)
                continue
            container = Container(spec, self.launcher, self._send)
            await container.adopt()
            if container.remains:
                self._keep(container, f"{container.remains} remains of {spec.task_id}")
            self.containers[container.key] = container
            self.preparer.cards.adopt(spec.name, spec.cards)
        for folder in self.fleet.containers.iterdir():
            if not (folder / "spec.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
        await self.preparer.zygotes.sweep()
        await self._sweep_strays()
        self.leases = Leases(self.agent_id, self.fleet.boot_id, self.secret, self.containers, self.paths.node)
        self.leases.adopt()

    async def _sweep_strays(self) -> None:
        """Containers of earlier agents that no folder tells of, also from before a reboot: shims first, they would hold the rest."""
        kept = {container.spec.name for container in self.containers.values()}
        for socket in self.fleet.run.glob("*.ctl"):
            if socket.name.removesuffix(".ctl") not in kept:
                say(f"{socket.stem} is a container that nothing is known of: removed")
                await dismiss(socket)
        for folder in self.fleet.run.iterdir():
            if folder.is_dir() and folder.name.partition("-")[0].isdigit() and folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)
        request = {"prefix": names_begin(self.agent_id), "kept": [container.spec.cgroup for container in self.containers.values()]}
        for name, remains in (await self.launcher.ask(task="strays", **request))["remains"].items():
            say(f"{name} was left behind: {remains or 'removed'}")
            if remains:     # whose it was is not known any more
                self.remains.keep(name, Left(tuple(self.nodes), f"{remains} remains of {name}", partial(self._remove_stray, name)))

    async def _remove_stray(self, name: str, patience_s: float) -> str:
        try:
            return str((await self.launcher.ask(task="stray", name=name, patience_s=patience_s))["remains"])
        except LaunchFailed as failure:     # it is looked for again
            return str(failure)

    async def _drop_what_is_half_made(self) -> None:
        """Zygotes and containers in preparation: no later agent takes them over. Before asyncio.run cancels every task at once, for then
        what they wait for in their end, the words of their shims, would be cancelled too, and this agent would hang."""
        await self._stop_preparing()
        await self.preparer.zygotes.leave()

    async def _stop_preparing(self) -> None:
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)

    async def _leave(self) -> None:
        """Interrupt every container, wait for its grace, kill, remove; then the bridge and the launcher."""
        await self._stop_preparing()
        if self._bridging is not None:
            await asyncio.wait({self._bridging})
        running = list(self.containers.values())
        graces = {container: container.spec.grace_ms or _LAST_GRACE_MS for container in running if container.phase == "running"}
        if graces:
            longest = max(graces.values())
            write_whole(str(self.paths.leaving), str(longest))      # whoever asked us to go waits so long before it kills us
            for container, grace_ms in graces.items():
                container.stop(signal.SIGINT, grace_ms)
            await asyncio.wait([asyncio.create_task(container.over.wait()) for container in graces], timeout=longest / 1000 + 1)
        await asyncio.gather(*(container.release() for container in running), self.preparer.zygotes.leave())
        if self._jobs:      # releases that the server asked for are still removing folders
            await asyncio.wait(set(self._jobs), timeout=_LAST_GRACE_MS / 1000)
        with contextlib.suppress(LaunchFailed):
            await self.launcher.ready()     # it may have been killed, and the bridge must go
            await self.remains.look(_LEAVING_PATIENCE_SECONDS)
            if self.choice.runtime != "process":
                await self.launcher.ask(task="unbridge", name=bridge_name(self.agent_id))
        await self._be_gone()

    async def _be_gone(self) -> None:
        """No container is left: launcher, ways and sockets go."""
        await self.launcher.leave()
        close_way(self.paths.agents_run)
        shutil.rmtree(self.paths.agents_run, ignore_errors=True)
        with contextlib.suppress(OSError):      # it is the control plane's too, where that has the same state folder
            self.paths.run.rmdir()

    # ---------------------------------------------------------------- the server

    async def _serve(self) -> None:
        """Be connected, for ever: a server that is away comes back."""
        delay = _BACKOFF_SECONDS[0]
        while True:
            channel = TasksChannel(self.tasks_socket)
            try:
                await self._session(Session(channel))
                delay = _BACKOFF_SECONDS[0]
            except (OSError, GRPCError, StreamTerminatedError, ProtocolError):
                pass
            finally:
                if self.session is not None:
                    self.session, delay = None, _BACKOFF_SECONDS[0]
                channel.close()
            await asyncio.sleep(delay)
            delay = min(delay * 2, _BACKOFF_SECONDS[1])

    async def _session(self, session: Session) -> None:
        register = self._register()
        session.send(agent_pb2.FromAgent(register=register))
        beating: asyncio.Task[None] | None = None
        try:
            async for message in session.messages():
                if message.HasField("welcome"):
                    self._check_welcome(message.welcome)
                    self.leases.welcomed(message.welcome, register.boottime_ms)
                    await self._welcome(session, message.welcome)
                    self._say_what_changed_since(register)
                    beating = asyncio.create_task(self._beat(session, message.welcome.heartbeat_ms or 5000))
                else:
                    self._obey(message)
        finally:
            if beating is not None:
                beating.cancel()

    @staticmethod
    def _check_welcome(welcome: agent_pb2.Welcome) -> None:
        if welcome.refusal:
            raise NotWelcome(welcome.refusal)

    async def _welcome(self, session: Session, welcome: agent_pb2.Welcome) -> None:
        if self.choice.runtime != "process" and self.preparer.ranges is None:
            # Begun, it is finished: a bridge that comes to be after we have left would stay.
            self._bridging = self._job(self._make_bridge(welcome.workspace_prefix))
            await asyncio.shield(self._bridging)
        self.session = session
        for container in self.containers.values():
            if container.phase in ("prepared", "running", "ended"):
                container.report_again()
                container.resume_log()

    def _say_what_changed_since(self, register: agent_pb2.Register) -> None:
        """It may have waited long for a server that was away, and until now there was nobody to say it to."""
        for facts in register.nodes:
            if facts.unschedulable != self.remains.of(facts.node_id):
                self._say_state(facts.node_id)

    async def _make_bridge(self, prefix: str) -> None:
        workspace, subnet = agent_subnet(prefix, self.agent_id)
        memory = self.paths.node / "network.json"
        preferred = json.loads(memory.read_text())["ipv4"] if memory.exists() else ""
        try:
            made = await self.launcher.ask(task="bridge", bridge={
                "name": bridge_name(self.agent_id), "ipv6": subnet, "preferred": preferred, "nameservers": nameservers()})
        except LaunchFailed as failure:
            say(f"no container network: {failure}")
            self.preparer.network_failure = str(failure)
            return
        write_whole(str(memory), json.dumps(made))
        self.preparer.ranges = Ranges(made["name"], made["ipv4"], made["ipv6"], workspace)
        for container in self.containers.values():
            self.preparer.ranges.adopt(container.spec.name, container.spec.ipv4)

    def _note_unkillable(self) -> None:
        """A node with a process that SIGKILL does not end takes no more work, until it is gone."""
        for container in self.containers.values():
            if container.ended is not None and container.ended.unkillable:
                told = f"{UNKILLABLE}: {container.spec.task_id}: {container.ended.sentence or 'SIGKILL does not end its processes'}"
                self._keep(container, told)

    def _keep(self, container: Container, sentence: str) -> None:
        self.remains.keep(container.spec.name, Left((container.spec.node_id,), sentence, partial(self._look_again, container)))

    async def _look_again(self, container: Container, patience_s: float) -> str:
        remains = await container.look_again(patience_s)
        if not remains and container.key not in self.containers:
            await self.preparer.forget(container.spec.name)
        return remains

    def _say_state(self, node_id: str) -> None:
        """What keeps this node out of service is gone, or something else."""
        self._send(agent_pb2.FromAgent(node_state=agent_pb2.NodeState(node_id=node_id, unschedulable=self.remains.of(node_id))))

    def _register(self) -> agent_pb2.Register:
        self._note_unkillable()
        image, choice = self.fleet.image, self.choice
        facts = [agent_pb2.NodeFacts(
            node_id=node.node_id, hostname=node.hostname, gpu_type=node.gpu_type, gpu_count=node.gpu_count, cpu_milli=node.cpu_milli,
            memory_mib=node.memory_mib, simulated=node.simulated, rdma=node.rdma, fabric_id=node.fabric_id, region="local", zone="local",
            network="local", shared_only=node.shared_only, runtime=choice.runtime, runtime_reason=choice.reason,
            guarantees=choice.guarantees, python_versions=[image.minor],
            unschedulable=self.remains.of(node.node_id)) for node in self.nodes.values()]
        adopted = [agent_pb2.Adopted(
            assignment=c.spec.assignment, rank=c.spec.rank, task_id=c.spec.task_id, node_id=c.spec.node_id, ended=c.phase == "ended")
            for c in self.containers.values() if c.phase in ("prepared", "running", "ended")]
        return agent_pb2.Register(
            protocol_version=PROTOCOL, agent_id=self.agent_id, boot_id=self.fleet.boot_id, engine="local", nodes=facts, adopted=adopted,
            secret=self.secret, peer_address=self.leases.peers.address, boottime_ms=machine.boottime_ms())

    async def _beat(self, session: Session, every_ms: int) -> None:
        while True:
            session.send(agent_pb2.FromAgent(heartbeat=self.leases.beat()))
            self.leases.connected()
            await asyncio.sleep(every_ms / 1000)

    def _send(self, message: agent_pb2.FromAgent) -> None:
        if self.session is not None:
            self.session.send(message)

    # ---------------------------------------------------------------- commands

    def _obey(self, message: agent_pb2.ToAgent) -> None:
        kind = message.WhichOneof("message")
        command = getattr(message, kind) if kind else None
        if command is None:
            return
        if kind == "beat_answer":
            self.leases.answered(command.boottime_ms)
            return
        if kind == "peers":
            self.leases.placed(command)
            return
        key = (command.assignment, command.rank)
        container = self.containers.get(key)
        match kind:
            case "prepare":
                self._prepare(key, command)
            case "start" if container:
                container.start()
            case "check_peers" if container:
                self._job(self._check(container, list(command.addresses)))
            case "stop":
                self._stop(key, command)
            case "release":
                self._job(self._release(key))
            case "ack_logs" if container:
                container.acknowledge(command.offset)
            case "mark_logs":
                if container is not None:
                    container.send_log()
                self._send(agent_pb2.FromAgent(logs_marked=agent_pb2.LogsMarked(
                    assignment=command.assignment, rank=command.rank, number=command.number)))

    def _prepare(self, key: Key, ask: agent_pb2.Prepare) -> None:
        if key in self.gone or key in self._preparing:
            return
        if key in self.containers:
            self.containers[key].report_again()
            return
        self._note_unkillable()
        task = self._job(self._prepare_one(key, ask))
        self._preparing[key] = task
        task.add_done_callback(lambda _: self._preparing.pop(key, None))

    async def _prepare_one(self, key: Key, ask: agent_pb2.Prepare) -> None:
        try:
            container = await self.preparer.prepare(ask, self._fetch, self._send)
        except Refused as refusal:
            self._send(agent_pb2.FromAgent(prepared=agent_pb2.Prepared(
                assignment=ask.assignment, rank=ask.rank,
                refusal=agent_pb2.Refusal(code=refusal.code, sentence=str(refusal), user_fault=refusal.user_fault))))
            return
        except Exception as error:      # a bug of ours: said to the server, or the gang would hold its nodes for ever
            self._send(agent_pb2.FromAgent(prepared=agent_pb2.Prepared(
                assignment=ask.assignment, rank=ask.rank,
                refusal=agent_pb2.Refusal(code="runtime", sentence=f"the agent of {ask.node_id} failed: {error!r}; its log has more"))))
            raise
        self.containers[key] = container
        container.report_again()
        container.start_pump()

    async def _fetch(self, layer_id: str) -> AsyncIterator[agent_pb2.LayerFile]:
        if self.session is None:
            raise ServerAway("no session")
        async for part in self.session.fetch_layer(layer_id):
            yield part

    async def _check(self, container: Container, addresses: list[str]) -> None:
        silent = await container.check(addresses)
        self._send(agent_pb2.FromAgent(reached=agent_pb2.Reached(
            assignment=container.spec.assignment, rank=container.spec.rank, unreachable=silent)))

    def _stop(self, key: Key, command: agent_pb2.Stop) -> None:
        container = self.containers.get(key)
        if container is not None:
            container.stop(command.signal or signal.SIGINT, command.grace_ms)
            return
        self.gone.add(key)
        if key in self._preparing:
            self._preparing[key].cancel()
        self._send(agent_pb2.FromAgent(exited=agent_pb2.Exited(
            assignment=key[0], rank=key[1], never_started=True, boottime_ms=machine.boottime_ms(), sentence="stopped before it started")))

    async def _release(self, key: Key) -> None:
        if key in self._preparing:
            self._preparing[key].cancel()
            await asyncio.wait({self._preparing[key]})
        container = self.containers.get(key)
        remains = ""
        if container is not None:
            self._note_unkillable()
            remains = await container.release()
            self.containers.pop(key, None)
            if remains:     # its folder, addresses and cards stay taken
                self._keep(container, f"{remains} remains of {container.spec.task_id}")
            else:
                await self.preparer.forget(container.spec.name)
                self.remains.drop(container.spec.name)
        self.gone.discard(key)
        self._send(agent_pb2.FromAgent(released=agent_pb2.Released(assignment=key[0], rank=key[1], remains=remains)))

    def _job(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Strong references: asyncio forgets tasks that nobody holds."""
        task = asyncio.create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        task.add_done_callback(say_failure)
        return task


def lock(folder: Path) -> IO[str]:
    """One agent for one state folder; the returned file holds the lock. BlockingIOError when another has it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "agent.lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file
