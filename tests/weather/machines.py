"""The machines of a simulated world. The agent and its containers are the real ones (phalanx/node); what they start is not.

    Host       one machine: what lies on its disk, and the shims that run
    Shim       parent of one rank, as phalanx/node/shim.py: outlives the agent
    Rank       the user's process, in ranks.py
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grpclib.exceptions import StreamTerminatedError

import phalanx.node.agent
import phalanx.node.leases
import phalanx.node.machine
from phalanx.engines.local import LocalNode
from phalanx.node.agent import Agent, NotWelcome
from phalanx.node.container import Container
from phalanx.node.launching import LaunchFailed
from phalanx.node.leases import Leases
from phalanx.node.peers import Peers
from phalanx.node.preparing import Refused
from phalanx.node.spec import Exit, Spec
from phalanx.protocol import agent_pb2 as pb
from tests.weather.lives import Life, begin
from tests.weather.plane import SLOWER, Away
from tests.weather.wire import CUT, Connection

Key = tuple[int, int]


class Host:
    def __init__(self, world: Any, number: int, gpus: int, folder: Path) -> None:
        self.world, self.name, self.folder = world, f"node-{number}", folder
        self.node = LocalNode(self.name, self.name, "H100", gpus, 8000, 16_000, simulated=False, rdma=True)
        folder.mkdir(parents=True)
        self.disk: dict[Key, Spec] = {}         # spec.json of each container
        self.shims: dict[Key, Shim] = {}
        self.agent: Agent | None = None
        self.life: Life | None = None
        self.is_cut = False                     # from the control plane
        self.is_alone = False                   # from the other nodes
        self.address = (f"10.9.0.{number}", 7000)
        self.ear: WeatherPeers | None = None
        self.is_off = False
        self.boots = 0
        self.machines = 1                       # that have had this name
        self.connection: Connection | None = None

    def start_agent(self) -> None:
        if self.is_off or (self.life is not None and not self.life.dead):
            return
        self.life = Life(f"agent of {self.name}")
        self.life.begin(self._run(self.life))

    async def _run(self, life: Life) -> None:
        while True:
            self.agent = WeatherAgent(self, life)
            with contextlib.suppress(NotWelcome):   # another machine with this name may still run something: whoever started it tries again
                await self.agent.live()
            await asyncio.sleep(60)

    def kill_agent(self) -> None:
        if self.life is not None:
            self.life.kill()
        self.cut_connection()

    def cut_connection(self) -> None:
        if self.connection is not None:
            self.connection.cut()
            self.connection = None

    def power_off(self) -> None:
        """All that runs is gone; the disk stays."""
        self.is_off = True
        self.kill_agent()
        for shim in list(self.shims.values()):
            shim.die()

    def power_on(self) -> None:
        self.is_off = False
        self.boots += 1
        self.start_agent()

    def renew(self) -> None:
        """Another machine in its place."""
        self.machines += 1
        self.disk.clear()
        self.shims.clear()
        for file in self.folder.glob("*.json"):
            file.unlink()


class WeatherAgent(Agent):
    """The real agent, with a machine below it that is told what to do."""

    def __init__(self, host: Host, life: Life) -> None:
        paths = SimpleNamespace(node=host.folder, tasks_socket=host)
        super().__init__(paths, 1, 8, "H100", "crun", host.world.config.join_secret, {})  # type: ignore[arg-type]
        self.host, self.life = host, life
        self.nodes = {host.name: host.node}
        self.agent_id = f"ag-{host.name}-{host.machines}"
        self.choice = SimpleNamespace(runtime="process", reason="weather", guarantees={}, rootless=False)  # type: ignore[assignment]
        self.fleet = SimpleNamespace(  # type: ignore[assignment]
            boot_id=f"boot-{host.machines}-{host.boots}", image=SimpleNamespace(minor=host.world.python), containers=host.folder,
            runtime="process")
        self.launcher = WeatherLauncher(host, life)  # type: ignore[assignment]
        self.preparer = WeatherPreparer(host, life, self.launcher)  # type: ignore[assignment]

    async def live(self) -> None:
        await self._adopt()
        await self.leases.peers.open()
        await asyncio.gather(self._serve(), self.leases.watch())

    async def _adopt(self) -> None:
        for spec in list(self.host.disk.values()):
            container = WeatherContainer(spec, self.launcher, self._send)
            await container.adopt()
            if container.remains:
                self._keep(container, f"{container.remains} remains of {spec.task_id}")
            self.containers[container.key] = container
        self.leases = WeatherLeases(self)
        self.leases.adopt()


class WeatherLeases(Leases):
    """The real leases, over datagrams of this world."""

    def __init__(self, agent: WeatherAgent) -> None:
        super().__init__(agent.agent_id, agent.fleet.boot_id, agent.secret, agent.containers, agent.host.folder)
        self.peers = WeatherPeers(agent, self)

    def welcomed(self, welcome: pb.Welcome, registered_ms: int) -> None:
        super().welcomed(welcome, registered_ms)
        self._greet_seconds = 2.0 * SLOWER


class WeatherPeers(Peers):
    def __init__(self, agent: WeatherAgent, leases: WeatherLeases) -> None:
        super().__init__(
            agent.agent_id, agent.fleet.boot_id, agent.secret, phalanx.node.machine.boottime_ms,
            lambda: leases.lease.is_away(phalanx.node.machine.boottime_ms()), leases._heard)
        self._host, self._life = agent.host, agent.life

    async def open(self, listen: str = "", memory: Path | None = None) -> None:
        self._transport = self  # type: ignore[assignment]
        self._host.ear = self

    def close(self) -> None:
        self._host.ear = None

    def get_extra_info(self, name: str) -> Any:
        return self._host.address

    def sendto(self, data: bytes, address: tuple[str, int]) -> None:
        to = next((host for host in self._host.world.hosts if host.address == address), None)
        if to is None or to.is_off or to.is_alone or self._host.is_alone or self._life.dead:
            return
        delay_s = self._host.world.weather.some_delay_s()
        asyncio.get_running_loop().call_later(delay_s, self._arrive, to, data)

    def _arrive(self, to: Host, data: bytes) -> None:
        if to.ear is not None and not to.ear._life.dead:
            to.ear._life.do(to.ear.datagram_received, data, self._host.address)


class WeatherLauncher:
    """The launcher's tasks that containers ask for."""

    def __init__(self, host: Host, life: Life) -> None:
        self.host, self.life = host, life

    async def ask(self, task: str, folder: str) -> dict[str, Any]:
        await asyncio.sleep(self.host.world.randomness.uniform(0, 0.05))
        key = _key_of(folder)
        if task == "sweep":
            Path(folder).mkdir(parents=True, exist_ok=True)     # an exit status is written there
            return {"remains": ""}
        assert task == "shim"
        self.host.shims[key] = Shim(self.host, self.host.disk[key])
        return {}

    def shim_of(self, spec: Spec) -> Shim | None:
        return self.host.shims.get((spec.assignment, spec.rank))


class WeatherPreparer:
    """Takes a while, and may refuse."""

    def __init__(self, host: Host, life: Life, launcher: WeatherLauncher) -> None:
        self.host, self.life, self.launcher = host, life, launcher
        self.ranges = None

    async def prepare(self, ask: pb.Prepare, fetch: Any, send: Any) -> Container:
        world, key = self.host.world, (ask.assignment, ask.rank)
        await asyncio.sleep(world.randomness.uniform(0.1, world.prepare_s))
        if world.randomness.random() < world.refuse:
            world.truth.infra(ask.assignment, "a start was refused")
            raise Refused("runtime", f"the weather on {ask.node_id} is bad")
        folder = str(self.host.folder / f"{ask.assignment}-{ask.rank}")
        Path(folder).mkdir(parents=True, exist_ok=True)
        spec = Spec(
            ask.assignment, ask.rank, ask.task_id, ask.task_secret, folder, "", folder, "", "process", node_id=ask.node_id,
            ipv6=f"fdaa::{ask.assignment:x}:{ask.rank:x}", ipv4=f"10.{ask.assignment % 250}.0.{ask.rank}",
            command=[ask.function_name], size=ask.size, grace_ms=ask.grace_ms)
        self.host.disk[key] = spec
        container = WeatherContainer(spec, self.launcher, send)
        try:
            await container.launch()
        except (LaunchFailed, OSError) as error:
            await self.forget(spec.name)
            raise Refused("runtime", str(error)) from error
        except asyncio.CancelledError:
            if not self.life.dead:
                await container.release()
                await self.forget(spec.name)
            raise
        return container

    async def forget(self, name: str) -> None:
        key = _key_of(name)
        self.host.disk.pop(key, None)
        self.host.shims.pop(key, None)


class WeatherContainer(Container):
    """The real one, whose shim is an object beside it. Logs are not shipped: they have weather of their own (test_logs_weather)."""

    launcher: Any

    async def _connect(self) -> None:
        shim = self.launcher.shim_of(self.spec)
        if shim is None or shim.phase in ("released", "dead"):
            raise ConnectionRefusedError("no shim listens")
        self._writer = shim
        self.phase, self.started_ms, self.until_ms, self.reached_ms = shim.phase, shim.started_ms, shim.until_ms, shim.reached_ms
        self.ended = shim.ended
        shim.listener = self._hear_if_alive
        shim.on_death = self._shim_died

    def _hear_if_alive(self, message: dict[str, Any]) -> None:
        if not self.launcher.life.dead:
            self.launcher.life.do(self._hear, message)

    def _shim_died(self) -> None:
        if self.launcher.life.dead:
            return
        self._writer = None
        for waiting in self._checks.values():
            if not waiting.done():
                waiting.set_result([])
        if not self._released.is_set():
            self.launcher.life.begin(self._bury_and_let_go())

    async def _bury_and_let_go(self) -> None:
        await self._bury()
        self.remains = self.remains or ""
        self._released.set()

    def _tell(self, **message: Any) -> None:
        if self._writer is not None and not self.launcher.life.dead:
            self._writer.hear(message)  # type: ignore[attr-defined]

    def _send_batch(self) -> bool:
        if self.ended is not None:
            self._sent = max(self._sent, self.ended.log_end)
        return False


class Shim:
    """As phalanx/node/shim.py: commands in, words out to whoever listens."""

    def __init__(self, host: Host, spec: Spec) -> None:
        self.host, self.spec = host, spec
        self.phase, self.started_ms = "prepared", 0
        self.ended: Exit | None = None
        self.stopping = False
        self.listener: Callable[[dict[str, Any]], None] = lambda message: None
        self.on_death: Callable[[], None] = lambda: None
        self.rank: Any = None
        self._main: asyncio.Task[Any] | None = None
        self._kill_at = 0.0
        self.until_ms = self.reached_ms = 0
        self.fenced = ""

    @property
    def key(self) -> Key:
        return self.spec.assignment, self.spec.rank

    def hear(self, message: dict[str, Any]) -> None:
        delay_s = self.host.world.randomness.uniform(0, 0.01)
        asyncio.get_running_loop().call_later(delay_s, self._obey, message)

    def die(self) -> None:
        """kill -9 of the shim, and of all below it: nobody will know how it ended."""
        if self.phase in ("released", "dead"):
            return
        if self.phase == "running":
            self.host.world.truth.infra(self.spec.assignment, "a shim was killed")
        self.phase = "dead"
        if self._main is not None:
            self._main.cancel()
        self.on_death()

    def _say(self, **message: Any) -> None:
        self.listener(message)

    def _obey(self, message: dict[str, Any]) -> None:
        match message["do"]:
            case "start":
                self._start()
            case "stop":
                self._stop(message["signal"], message["grace_ms"], message.get("fenced", ""))
            case "lease":
                self._lease(message["until_ms"], message["reached_ms"])
            case "check":
                begin(self._check(message["id"], message["addresses"]))
            case "release":
                self._release()

    def _start(self) -> None:
        if self.phase != "prepared" or self.stopping:
            return
        self.phase, self.started_ms = "running", phalanx.node.machine.boottime_ms()
        self.rank = self.host.world.rank_of(self)
        self._main = begin(self._wait())
        self._say(say="started", boottime_ms=self.started_ms)

    async def _wait(self) -> None:
        code, number, oom = await self.rank.run()
        self._end(Exit(code=code, signal=number, oom_killed=oom, memory_limit_bytes=128 << 20, memory_peak_bytes=128 << 20))

    async def _check(self, number: int, addresses: list[str]) -> None:
        await asyncio.sleep(self.host.world.randomness.uniform(0, 1))
        if self.phase in ("prepared", "running", "ended"):
            self._say(say="checked", id=number, silent=[])

    def _lease(self, until_ms: int, reached_ms: int) -> None:
        first, self.until_ms, self.reached_ms = not self.until_ms, until_ms, reached_ms
        if first and until_ms:
            self._watch_lease()

    def _watch_lease(self) -> None:
        if not self.until_ms or self.phase not in ("prepared", "running") or self.stopping:
            return
        left_ms = self.until_ms + 2_000 * SLOWER - phalanx.node.machine.boottime_ms()
        if left_ms > 0:
            asyncio.get_running_loop().call_later(left_ms / 1000, self._watch_lease)
            return
        self._stop(signal.SIGINT, self.spec.grace_ms, "the agent of its node was gone, and nobody could say that it may go on")

    def _stop(self, number: int, grace_ms: int, fenced: str = "") -> None:
        if fenced and not self.stopping:
            self.fenced = fenced
            self.host.world.truth.infra(self.spec.assignment, "fenced")
        if self.phase == "prepared":
            self.stopping = True
            self._end(Exit(sentence="stopped before it started", never_started=True))
            return
        if self.phase != "running":
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_ms / 1000
        self._kill_at = min(self._kill_at, deadline) if self.stopping else deadline
        self.stopping = True
        if number == signal.SIGKILL:
            self._kill_at = 0.0
        else:
            self.rank.interrupt()
        loop.call_later(max(0.0, self._kill_at - loop.time()), self._kill_if_due)

    def _kill_if_due(self) -> None:
        if self.phase == "running" and asyncio.get_running_loop().time() >= self._kill_at - 1e-3:
            self.rank.kill()

    def _release(self) -> None:
        if self.phase == "dead":
            return
        self.phase = "released"
        if self._main is not None:
            self._main.cancel()
        self._say(say="released", remains="")

    def _end(self, ended: Exit) -> None:
        ended.boottime_ms, ended.fenced = phalanx.node.machine.boottime_ms(), self.fenced
        self.phase, self.ended = "ended", ended
        self._say(say="ended", exit=asdict(ended))


class Channel:
    """In the place of node.session.TasksChannel: `path` is the host."""

    def __init__(self, path: Any) -> None:
        self.host: Host = path

    def close(self) -> None:
        self.host.cut_connection()


class Session:
    """In the place of node.session.Session."""

    def __init__(self, channel: Channel) -> None:
        self._host = channel.host
        self._waiting: list[pb.FromAgent] = []
        self._connection: Connection | None = None

    def send(self, message: pb.FromAgent) -> None:
        if self._connection is None:
            self._waiting.append(message)
        else:
            self._connection.to_server.send(message)

    async def messages(self) -> AsyncIterator[pb.ToAgent]:
        if self._host.is_cut:
            raise ConnectionRefusedError("the network is cut")
        try:
            connection = self._host.world.plane.connect()
        except Away as away:
            raise ConnectionRefusedError(str(away)) from away
        self._connection = self._host.connection = connection
        for message in self._waiting:
            connection.to_server.send(message)
        while (message := await connection.to_agent.receive()) is not CUT:
            yield message
        raise StreamTerminatedError("cut")

    async def fetch_layer(self, layer_id: str) -> AsyncIterator[pb.LayerFile]:
        return
        yield


def patch_node(time: Any, patch: Callable[..., None]) -> None:
    """The agent's connection is the world's, and so is its time."""
    patch(phalanx.node.machine, "time", time)
    patch(phalanx.node.leases, "_TICK_SECONDS", 1.0 * SLOWER)
    patch(phalanx.node.agent, "TasksChannel", Channel)
    patch(phalanx.node.agent, "Session", Session)
    for module in (phalanx.node.agent, phalanx.node.leases):
        patch(module, "say", lambda *_: None)


def _key_of(folder: str) -> Key:
    assignment, rank = Path(folder).name.split("-")
    return int(assignment), int(rank)
