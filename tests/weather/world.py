"""A simulated world: one control plane, machines, people and weather, from one seed."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from phalanx.config import Config
from phalanx.model.cluster import Assignment, Phase
from phalanx.model.work import Call, Input, InputState, Output
from phalanx.server.clients import OWN_PYTHON
from phalanx.server.world import RECORD_CLASSES
from phalanx.server.world import World as Records
from tests.weather.faults import FAULTS, Fault
from tests.weather.lives import begin, task_factory
from tests.weather.machines import Host, Shim, patch_node
from tests.weather.people import Person
from tests.weather.plane import SLOWER, CollectBugs, Plane
from tests.weather.ranks import Rank
from tests.weather.truth import Truth
from tests.weather.virtual_time import VirtualLoop, VirtualTime
from tests.weather.wire import Weather

EVENING_S = 24 * 3600.0         # all that was called has ended so long after the weather has cleared


class World:
    """Attributes are the weather: faults set and reset them."""

    def __init__(
        self, folder: Path, seed: int, patch: pytest.MonkeyPatch, hosts: int = 5, people: int = 3,
        hours: float = 6, fault_every_s: float = 600, keep_hours: float = 24,
    ) -> None:  # fmt: skip
        """Weather for so many hours, a fault every so often; what is over is kept for `keep_hours`."""
        self.seed, self.hours, self.fault_every_s, self.keep_hours = seed, hours, fault_every_s, keep_hours
        self.randomness = random.Random(f"world {seed}")
        self.loop = VirtualLoop()
        self.loop.set_task_factory(task_factory)
        self.loop.set_exception_handler(self._unhandled)
        self.time = VirtualTime(self.loop)
        retention_s = round(keep_hours * 3600)
        self.config = Config(durability="process", allow_cpu_clusters=True, result_retention_s=retention_s, extra={"recount": "yes"})
        for name in ("token_id", "token_secret", "join_secret"):
            setattr(self.config, name, f"{name}-of-{seed}")
        self.config.workspace_prefix = "fdaa:1:2"
        self.weather = Weather(random.Random(f"weather {seed}"))
        patch.setattr(os, "fsync", lambda _: None)      # no world loses power: it would be a tenth of its time
        patch_node(self.time, patch.setattr)
        self.plane = Plane(folder, self.config, random.Random(f"plane {seed}"), self.weather, self.time, patch.setattr)
        self.truth = Truth(self)
        self.plane.committed = self.truth.committed
        self.python = OWN_PYTHON
        self.config.infra_retries = self.infra_budget = 8
        self.config.lease_ms = 30_000 * SLOWER
        self.functions: dict[str, Any] = {}
        self.largest = max(1, hosts - 1)
        (folder / "hosts").mkdir()
        self.hosts = [Host(self, n, 8, folder / "hosts" / str(n)) for n in range(hosts)]
        self.people = [Person(self, n) for n in range(people)]
        self.refuse, self.prepare_s, self.hello_s, self.die_in_import, self.raise_in_import = 0.0, 3.0, 2.0, 0.0, 0.0
        self.change_mind, self.think_s, self.calls_each = 0.1, 1800.0, 4
        self.is_evening = False
        self.quiet_s = 2 * 3600.0       # from the last result to the look at what is left
        self.said: list[str] = []
        self.faults: Counter[str] = Counter()

    def rank_of(self, shim: Shim) -> Rank:
        return Rank(shim)

    def some_host(self) -> Host:
        return self.randomness.choice(self.hosts)

    def excuse(self, host: Host, what: str) -> None:
        """What runs there now may run out of time by no fault of its own."""
        for assignment, _ in host.shims:
            self.truth.infra_of[assignment].append(what)

    def live(self, faults: dict[Fault, float] = FAULTS) -> None:
        """Weather for so long; then it clears, and everything comes to its end. Raises Wrong with all that was."""
        handler = CollectBugs(self.plane.bugs)
        logging.getLogger("phalanx").addHandler(handler)
        try:
            self.loop.run(self._live(faults))
        finally:
            logging.getLogger("phalanx").removeHandler(handler)
        self.truth.wrong += [f"the server reported: {bug}" for bug in self.plane.bugs]
        if self.truth.wrong:
            raise Wrong(f"seed {self.seed}:\n" + "\n".join(self.truth.wrong[:20]))

    async def _live(self, faults: dict[Fault, float]) -> None:
        self.plane.start()
        for host in self.hosts:
            host.start_agent()
        await asyncio.sleep(60)     # a function is refused that the nodes registered so far could never run
        people = [begin(person.live()) for person in self.people]
        for person in people:
            person.add_done_callback(self._person_left)
        until = self.loop.time() + self.hours * 3600
        running: set[asyncio.Task[Any]] = set()
        while self.loop.time() < until and not self.truth.wrong and not self.plane.bugs:
            await asyncio.sleep(self.randomness.expovariate(1 / self.fault_every_s))
            fault = self.randomness.choices(list(faults), list(faults.values()))[0]
            self.said.append(f"{self.loop.time():.1f} {fault.__name__}")
            self.faults[fault.__name__] += 1
            running.add(begin(fault(self)))
            running = {task for task in running if not task.done()}
            if self.randomness.random() < 0.1:
                await self._compare()
        self.is_evening = True
        if running:
            _, stuck = await asyncio.wait(running, timeout=EVENING_S)
            for task in stuck:
                self.truth.say_wrong(f"a fault does not end: {task}")
        await self._clear_up(people)

    async def _clear_up(self, people: list[asyncio.Task[Any]]) -> None:
        """Nothing goes wrong any more: every call is decided, every node is free."""
        self.weather.calm()
        for host in self.hosts:
            host.power_on() if host.is_off else host.start_agent()
        if not self.truth.wrong:
            _, waiting = await asyncio.wait(people, timeout=EVENING_S)
            for call in list(self.truth.calls.values()) if waiting else []:
                self.truth.say_wrong(f"{call.call_id} ({call.function}) got {len(call.got)} outputs: {self._why(call)}")
        if not self.truth.wrong:
            await asyncio.sleep(self.quiet_s)
            made, acknowledged = self.truth.counts["calls made"], self.truth.counts["calls acknowledged"]
            if made != acknowledged:
                self.truth.say_wrong(f"{acknowledged} calls were made by somebody, and {made} are in the store: a retry made another one")
            for row in self.plane.rows.tables["assignment"].values():
                if row["phase"] != Phase.ENDED:
                    self.truth.say_wrong(f"assignment {row['assignment']} of {row['size']} is still {row['phase']}: {row}")
            for host in self.hosts:
                for shim in host.shims.values():
                    self.truth.say_wrong(f"{host.name} still has {shim.spec.name}, {shim.phase}")
            await self._compare()
        self.plane.kill(1e9)
        for host in self.hosts:
            host.power_off()

    async def _compare(self) -> None:
        """What is in memory is what a restart would find, and what is counted is what a recount gives."""
        plane = self.plane
        for _ in range(50):     # a moment without a transaction under way
            if not plane.is_up:
                return
            if not plane.server.database._queue and plane.server.is_settled:  # type: ignore[attr-defined]
                break
            await asyncio.sleep(0.001)
        else:
            return
        server, stored = plane.server, Records.load(plane.server.database)
        for record_class in RECORD_CLASSES:
            memory, rows = server.world[record_class], stored[record_class]
            for key in [key for key in {**memory, **rows} if memory.get(key) != rows.get(key)][:3]:
                self.truth.say_wrong(f"{record_class.__name__} {key} differs:\n  memory {memory.get(key)}\n  store  {rows.get(key)}")
        self._recount(stored)

    def _recount(self, stored: Records) -> None:
        gangs = self.plane.server.gangs
        pending: dict[str, int] = {}
        for item in stored[Input].values():
            if item.state == InputState.PENDING:
                pending[item.function_id] = pending.get(item.function_id, 0) + 1
        waiting = {function_id: len(pool.waiting) for function_id, pool in gangs.pools.items() if pool.waiting}
        if pending != waiting:
            self.truth.say_wrong(f"queues have {waiting}, a recount gives {pending}")
        living = {a.assignment for a in stored[Assignment].values() if a.phase != Phase.ENDED}
        if living != set(gangs.running):
            self.truth.say_wrong(f"running are {sorted(gangs.running)}, a recount gives {sorted(living)}")
        inputs: dict[str, int] = {}
        outputs: dict[str, int] = {}
        for item in stored[Input].values():
            inputs[item.call_id] = inputs.get(item.call_id, 0) + 1
        for output in stored[Output].values():
            outputs[output.call_id] = outputs.get(output.call_id, 0) + 1
        for call in stored[Call].values():
            counted = inputs.get(call.call_id, 0), outputs.get(call.call_id, 0)
            if (call.num_inputs, call.num_outputs) != counted:
                self.truth.say_wrong(f"{call.call_id} counts {call.num_inputs} inputs, {call.num_outputs} outputs; a recount {counted}")
        for pool in gangs.pools.values():
            for number in pool.gangs:
                if number not in gangs.running:
                    self.truth.say_wrong(f"pool {pool.function_id} counts assignment {number}, which is over")

    def _why(self, call: Any) -> str:
        """For people: how things stand with what was not decided."""
        tables = self.plane.rows.tables
        items = [row for row in tables["input"].values() if row["call_id"] == call.call_id and row["state"] != "done"]
        said = []
        for row in itertools.islice(items, 3):
            assignment = tables["assignment"].get((row["assignment"],))
            members = [member for key, member in tables["member"].items() if key[0] == row["assignment"]]
            shims = [(host.name, shim.phase) for host in self.hosts for key, shim in host.shims.items() if key[0] == row["assignment"]]
            waits = self.plane.server.planning.waits if self.plane.is_up else None
            said.append(
                f"\n  input {row}\n  assignment {assignment}\n  members {[(m['node_id'], m['state']) for m in members]}\n  shims {shims}"
                f"\n  waits {waits}")
        return "".join(said)

    def _person_left(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.truth.say_wrong(f"a person could not go on: {task.exception()!r}")

    def _unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, asyncio.CancelledError):
            return
        self.plane.bugs.append(context["message"] + "\n" + "".join(traceback.format_exception(error)))


class Wrong(AssertionError):
    """A rule did not hold."""
