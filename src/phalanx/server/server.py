"""The server's public face: what api/ calls, by noun. Owns the world, the store, the clock; built once, in one event loop."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import random
from collections.abc import Callable

from phalanx.config import Config
from phalanx.model.caller import Caller
from phalanx.model.cluster import Member
from phalanx.model.ids import new_id
from phalanx.model.kept import Counter, KeptAnswer
from phalanx.model.node import NodeRecord
from phalanx.paths import Paths
from phalanx.server.agents import Agents
from phalanx.server.apps import Apps
from phalanx.server.arguments import Arguments
from phalanx.server.bugs import Bugs
from phalanx.server.calls import Calls
from phalanx.server.clients import Clients
from phalanx.server.clock import Clock, RealClock
from phalanx.server.containers import Containers
from phalanx.server.deployments import Deployments
from phalanx.server.environments import Environments
from phalanx.server.functions import Functions
from phalanx.server.gangs import Gangs
from phalanx.server.giving_way import GivingWay
from phalanx.server.images import Images
from phalanx.server.input_requests import InputRequests
from phalanx.server.leases import Leases
from phalanx.server.log_marks import LogMarks
from phalanx.server.logins import Logins
from phalanx.server.logs import Logs
from phalanx.server.mounts import Mounts
from phalanx.server.nodes import Nodes
from phalanx.server.planning import Planning
from phalanx.server.purging import Purging
from phalanx.server.restored import lose_ranks
from phalanx.server.retentions import Retentions
from phalanx.server.secrets import Secrets
from phalanx.server.unit import Unit
from phalanx.server.waiting import Topics
from phalanx.server.world import RECORD_CLASSES, World
from phalanx.store.blobs import Blobs
from phalanx.store.database import Database
from phalanx.store.hold import FileHold, Holder

LOG = logging.getLogger("phalanx.server")
GET_INPUTS = "FunctionGetInputs"


def database_url(config: Config, paths: Paths) -> str:
    """`database` of the configuration, or SQLite in the state folder."""
    return config.database_url or f"sqlite:///{paths.database}"


class Server:
    """One control plane's state and its nouns."""

    def __init__(self, config: Config, paths: Paths, clock: Clock | None = None, randomness: random.Random | None = None) -> None:
        self.config = config
        self.paths = paths
        self.clock: Clock = clock or RealClock()
        self.returned_ms = self.clock.now_ms()      # since when this process is the server
        self.randomness = randomness or random.SystemRandom()
        self.end_process: Callable[[], None] = lambda: os._exit(70)
        me = Holder.me(config.listen)
        self._hold = FileHold(paths.server_lock, f"the state {paths.state}", me)    # its blobs and logs; the database is held by itself
        try:
            self.database = Database(database_url(config, paths), RECORD_CLASSES, config.durability, me)
        except BaseException:
            self._hold.release()
            raise
        self.database.lost = self._lost
        self.world = World.load(self.database)
        self.topics = Topics()
        self._commits: set[Unit] = set()            # that are not acted on yet
        self._tasks: set[asyncio.Task[None]] = set()
        self.input_requests = InputRequests()
        self.bugs = Bugs(paths.bugs, self.now_ms())
        self.agents = Agents(self)
        self.leases = Leases(self)
        self.apps = Apps(self)
        self.arguments = Arguments(self)
        self.blobs = Blobs(paths.blobs, config.durability)
        self.calls = Calls(self)
        self.clients = Clients(paths.clients)
        self.containers = Containers(self)
        self.deployments = Deployments(self)
        self.environments = Environments(self)
        self.functions = Functions(self)
        self.gangs = Gangs(self)
        self.images = Images(self)
        self.logins = Logins(self)
        self.logs = Logs(self)
        self.log_marks = LogMarks(self)
        self.mounts = Mounts(self)
        self.nodes = Nodes(self)
        self.planning = Planning(self)
        self.purging = Purging(self)
        self.retentions = Retentions(self)
        self.giving_way = GivingWay(self)
        self.secrets = Secrets(self)

    def start(self) -> None:
        """Take up the work where the last commit left it, and begin the timers. Once, in the event loop, before sockets are served."""
        self.environments.start()
        self.blobs.clean()
        self.calls.load()
        self.gangs.load()
        self.leases.start()
        self.apps.start()
        self.logs.load()
        self.retentions.load()
        self.purging.start()
        self.planning.load()
        lose_ranks(self)
        self.planning.soon()

    def close(self) -> None:
        self.database.close()
        self._hold.release()

    def unit(self) -> Unit:
        return Unit(self.world, self.database)

    def act(self, change: Callable[[Unit], object]) -> asyncio.Future[None]:
        """Change the world outside of a request: for timers and reports. The future is done when the change is on disk and acted on."""
        unit = self.unit()
        try:
            change(unit)
        except Exception:
            self.end_if_changed(unit, "a report or a timer")
            raise
        return self.commit_soon(unit)

    def end_if_changed(self, unit: Unit, what: str) -> None:
        """A unit raised: if it changed records before, memory is half-way, and the process starts again from the store (bugs.py)."""
        if unit.has_changes:
            LOG.critical("%s failed half-way through its changes: starting again from the last commit", what, exc_info=True)
            self.end_process()

    def commit_soon(self, unit: Unit) -> asyncio.Future[None]:
        """Commit and act while the loop goes on; who has somebody to answer awaits it."""
        self._commits.add(unit)
        return unit.commit(self._committed)

    def must_succeed(self, task: asyncio.Task[None]) -> None:
        """A failure of this task means that memory is ahead of the store: then the process ends and starts again (unit.py)."""
        self._tasks.add(task)     # the loop itself holds tasks weakly
        task.add_done_callback(self._task_ended)

    @property
    def is_settled(self) -> bool:
        """Is all that was begun on disk and acted on?"""
        return not self._commits and not self._tasks

    async def settled(self) -> None:
        """Return when all that timers have begun to commit is on disk and acted on."""
        while not self.is_settled:
            if self._tasks:
                await asyncio.wait(set(self._tasks))
            await self.database.caught_up()
            await asyncio.sleep(0)      # units are acted on a turn later

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._not_committed(task.exception())

    def _committed(self, unit: Unit, error: BaseException | None) -> None:
        self._commits.discard(unit)
        if error is not None:
            self._not_committed(error)

    def _not_committed(self, error: BaseException | None) -> None:
        LOG.critical("a change could not be committed: memory is ahead of the store, starting again", exc_info=error)
        self.end_process()

    def _lost(self, error: BaseException) -> None:
        LOG.critical("the database is out of reach or another's: starting again", exc_info=error)
        self.end_process()

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def secret(self) -> str:
        """For one task: its shim says it when it connects."""
        return f"{self.randomness.getrandbits(128):032x}"

    def fabric_ids(self, members: list[Member]) -> list[str]:
        """The NVLink domain of each member's node, in rank order; none where no node has one."""
        nodes = [self.world[NodeRecord].get(member.node_id) for member in members]
        ids = [node.fabric_id if node else "" for node in nodes]
        return ids if any(ids) else []

    def new_id(self, prefix: str) -> str:
        return new_id(prefix, self.randomness)

    def next_number(self, unit: Unit, name: str) -> int:
        """The next value of a counter that survives restarts: assignments, log sequence."""
        counter = self.world[Counter].get(name) or Counter(name)
        counter.value += 1
        unit.put(counter)
        return counter.value

    def is_token(self, token_id: str, token_secret: str) -> bool:
        return hmac.compare_digest(f"{token_id}:{token_secret}".encode(), f"{self.config.token_id}:{self.config.token_secret}".encode())

    def kept_answer(self, caller: Caller, rpc: str) -> bytes | None:
        """The answer that an earlier try of this request got, if its effect is committed."""
        kept = self.world[KeptAnswer].get((caller.name, rpc, caller.idempotency_key))
        return kept.answer if kept else None

    def keep_answer(self, unit: Unit, caller: Caller, rpc: str, answer: bytes) -> None:
        if rpc == GET_INPUTS:
            had = self.input_requests.answered(caller.name, caller.idempotency_key)
            kept = self.world[KeptAnswer].get((caller.name, rpc, had))
            if kept is not None:
                unit.delete(kept)
        unit.put(KeptAnswer(caller.name, rpc, caller.idempotency_key, answer, self.now_ms()))
