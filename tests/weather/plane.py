"""The control plane of a simulated world: the real server and the real servicers, killed and started again on one store."""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpclib.exceptions import GRPCError

import phalanx.api.calls
import phalanx.core.lease
import phalanx.server.clock
import phalanx.server.containers
import phalanx.server.leases
import phalanx.server.logs
import phalanx.server.planning
import phalanx.server.server
from phalanx.api.serve import servicers
from phalanx.api.transport import Transport, errors_for_the_user
from phalanx.config import Config
from phalanx.model.caller import Caller
from phalanx.model.refusal import Refusal
from phalanx.paths import Paths
from phalanx.server.clients import OWN_PYTHON, ClientPackage
from phalanx.server.clock import RealClock
from phalanx.server.server import Server
from phalanx.store.database import StoreError
from tests.weather.lives import Life
from tests.weather.rows import Changes, Handle, Rows
from tests.weather.virtual_time import VirtualTime
from tests.weather.wire import Connection, Weather

MODAL = "1.6.4"
SLOWER = 10         # heartbeats, and with them all leases: they would be most of all events


class Away(ConnectionError):
    """Nobody answered: whether it had its effect nobody knows."""


class Plane:
    """`patch` is pytest's monkeypatch.setattr: time, exit and store of the server's modules are the world's."""

    def __init__(
        self, folder: Path, config: Config, randomness: random.Random, weather: Weather, time: VirtualTime, patch: Callable[..., None]
    ) -> None:
        self.paths, self.config, self.weather = Paths(folder / "state"), config, weather
        self.rows = Rows(random.Random(randomness.random()))
        self.rows.before, self.rows.after = self._before, self._after
        self.randomness = randomness
        self.crash_in_commit = 0.0              # probability of one transaction
        self.committed: Callable[[Changes], None] = lambda changes: None
        self.life: Life | None = None
        self.server: Server = None      # type: ignore[assignment]
        self.bugs: list[str] = []
        self.lives = 0
        self._transport: Transport = None       # type: ignore[assignment]
        self._back: asyncio.Task[None] | None = None
        self._connections: list[Connection] = []
        self._answers: dict[str, Any] = {}
        self._patch(time, patch)

    def _patch(self, time: VirtualTime, patch: Callable[..., None]) -> None:
        for module in (
            phalanx.server.containers, phalanx.server.clock, phalanx.server.logs, phalanx.server.planning, phalanx.api.calls
        ):  # fmt: skip
            patch(module, "time", time, raising=False)
        patch(phalanx.core.lease, "MARGIN_MS", phalanx.core.lease.MARGIN_MS * SLOWER)
        for name in ("TICK_MS", "_MOST_MS", "_SILENT_MS"):
            patch(phalanx.server.leases, name, getattr(phalanx.server.leases, name) * SLOWER)
        patch(phalanx.server.server, "Database", lambda url, classes, durability, me: Handle(self.rows, classes))

    @property
    def is_up(self) -> bool:
        return self.life is not None and not self.life.dead

    def start(self) -> None:
        life = Life(f"server {self.lives}")
        self.lives += 1
        self.life = life
        life.do(self._start, life)

    def _start(self, life: Life) -> None:
        self.server = Server(self.config, self.paths, LifeClock(life), random.Random(self.randomness.random()))
        self.server.end_process = self._left_by_itself
        self.server.clients = OneClient()  # type: ignore[assignment]
        self.server.start()
        self._transport = Transport(self.server, servicers(self.server))

    def kill(self, away_s: float) -> None:
        """kill -9, and back after that long."""
        if not self.is_up:
            return
        assert self.life is not None
        self.server.database.dead = True  # type: ignore[attr-defined]
        self.server._hold.release()
        self.life.kill()
        for connection in self._connections:
            connection.cut()
        self._connections.clear()
        asyncio.get_running_loop().call_later(away_s, self.start)

    def _left_by_itself(self) -> None:
        self.kill(self.randomness.uniform(0.1, 5))

    def _before(self) -> None:
        if self.weather.happens(self.crash_in_commit):
            self.kill(self.randomness.uniform(0.1, 60))

    def _after(self, changes: Changes) -> None:
        try:
            self.committed(changes)
        except Exception:       # else the store waits for ever
            self.bugs.append(f"the truth could not be told: {traceback.format_exc()}")
        self._before()

    # ------------------------------------------------------------ the sockets

    async def rpc(self, caller: Caller, name: str, request: Any) -> Any:
        """One try. Away: no answer came; GRPCError: the server's refusal."""
        weather = self.weather
        await asyncio.sleep(weather.some_delay_s())
        if not self.is_up or weather.happens(weather.lose_request):
            raise Away(name)
        if weather.happens(weather.double_request) and caller.idempotency_key:
            self._serve(caller, name, request).add_done_callback(_seen)
        if weather.happens(weather.double_request) and caller.idempotency_key:      # and once more, when nobody expects it
            asyncio.get_running_loop().call_later(weather.randomness.uniform(0, 120), self._late, self.life, caller, name, request)
        answer = await self._answer_of(self._serve(caller, name, request), name)
        await asyncio.sleep(weather.some_delay_s())
        if weather.happens(weather.lose_answer):
            raise Away(name)
        return answer

    async def task_rpc(self, task_id: str, assignment: int, rank: int, secret: str, name: str, request: Any, key: str) -> Any:
        """As `rpc`, from a container through its shim's socket."""
        if not self.is_up or self.server.gangs.authenticate(task_id, assignment, secret) is None:
            raise Away(name)
        caller = Caller(task_id, task_id, assignment, rank, MODAL, OWN_PYTHON, key, unix_socket=True)
        return await self.rpc(caller, name, request)

    def _late(self, life: Life | None, caller: Caller, name: str, request: Any) -> None:
        if self.is_up and self.life is life:        # it lay in a connection, which ended with that server
            self._serve(caller, name, request).add_done_callback(_seen)

    def _serve(self, caller: Caller, name: str, request: Any) -> asyncio.Task[Any]:
        assert self.life is not None
        transport = self._transport

        async def serve() -> Any:
            with errors_for_the_user(name):
                method = transport.implementation(name)
                return await transport._answer(name, method, request, caller)  # type: ignore[arg-type]

        return self.life.begin(serve())

    async def _answer_of(self, task: asyncio.Task[Any], name: str) -> Any:
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:      # the client went away
            task.cancel()
            task.add_done_callback(_seen)
            raise
        if task.cancelled():
            raise Away(name)
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, GRPCError):
            raise error
        raise Away(name)

    async def decide(self, change: Callable[[Any], Any]) -> bool:
        """Somebody's word through the admin door, again until it is on disk. False: it was refused, which is an answer."""
        while True:
            task = self.life.begin(_act(self.server, change)) if self.is_up and self.life is not None else None
            if task is not None:
                await asyncio.wait({task})
                if not task.cancelled() and (task.exception() is None or isinstance(task.exception(), Refusal)):
                    return task.exception() is None
                if not task.cancelled() and not isinstance(task.exception(), StoreError):
                    self.bugs.append(f"somebody decided something, and it failed: {task.exception()!r}")
            await asyncio.sleep(self.randomness.uniform(0.5, 5))

    def connect(self) -> Connection:
        """An agent's session. Away: nobody listens."""
        if not self.is_up:
            raise Away("Session")
        assert self.life is not None
        connection = Connection(self.weather)
        self._connections.append(connection)
        serving = self.life.begin(self.server.agents.Session(connection))
        serving.add_done_callback(_seen)
        serving.add_done_callback(lambda _: connection.cut())
        return connection


class LifeClock(RealClock):
    """The server's own clock; its timers die with it."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> Any:
        def fire() -> None:
            if not self._life.dead:
                action()

        return super().call_after(delay_ms, fire)


class OneClient:
    """In the place of server.clients: the client's files are no part of the weather."""

    package = ClientPackage(MODAL, OWN_PYTHON, Path("/nowhere"), Path("/nowhere"), "0" * 40)

    def known(self, version: str, python_version: str = OWN_PYTHON) -> ClientPackage:
        return self.package

    async def get(self, version: str, python_version: str = OWN_PYTHON) -> ClientPackage:
        return self.package


class CollectBugs(logging.Handler):
    """What the server logs as its own failure."""

    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        if "could not be committed" not in record.getMessage() and "logs wait" not in record.getMessage():
            self._into.append(self.format(record))


async def _act(server: Server, change: Callable[[Any], Any]) -> None:
    unit = server.unit()
    change(unit)
    await server.commit_soon(unit)


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
