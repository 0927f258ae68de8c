"""The user's process of one rank: it speaks with the control plane as the stock runner does, and its program does what users do."""

from __future__ import annotations

import asyncio
from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib.exceptions import GRPCError
from modal_proto import api_pb2

from tests.weather.lives import begin
from tests.weather.plane import Away

Result = api_pb2.GenericResult
GIVE_UP_S = 3600.0


class Left(Exception):
    """The process ends like this."""

    def __init__(self, code: int = 0, signal: int = 0, oom: bool = False) -> None:
        super().__init__()
        self.how = code, signal, oom


class Interrupted(Exception):
    """KeyboardInterrupt in the user's code."""


class Rank:
    def __init__(self, shim: Any) -> None:
        self.shim, self.host, self.world = shim, shim.host, shim.host.world
        self.spec = shim.spec
        self.function = self.world.functions[self.spec.command[0]]
        self.size = self.spec.size
        self.open_inputs: dict[str, int] = {}     # input id -> attempt
        self._interrupted = asyncio.Event()
        self._cancelled: set[str] = set()
        self._cancel_wake = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._works: dict[asyncio.Task[Any], None] = {}
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()     # what one of its inputs did to the process
        self._over.add_done_callback(lambda over: over.exception())
        self._keys = 0
        self.ignores_signals = False

    # ------------------------------------------------------------ what the shim does with it

    async def run(self) -> tuple[int, int, bool]:
        """Until its end: (exit code, signal, out of memory)."""
        self.world.truth.process_began(self)
        self._task = begin(self._live())
        try:
            await asyncio.wait({self._task})
        finally:
            self.world.truth.process_ended(self)
            for task in (self._task, *self._works):
                task.cancel()
        if self._task.cancelled():
            return 0, 9, False
        error = self._task.exception()
        if error is None:
            return 0, 0, False
        if isinstance(error, Left):
            return error.how
        if isinstance(error, Interrupted):
            return 130, 0, False
        if isinstance(error, Away):     # as the stock runner: it gives up, with a traceback
            self.world.truth.infra(self.spec.assignment, "a rank gave up on its control plane")
            return 1, 0, False
        raise error

    def interrupt(self) -> None:
        if not self.ignores_signals:
            self._interrupted.set()
            self._cancel_wake.set()

    def kill(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # ------------------------------------------------------------ its life

    async def _live(self) -> None:
        world, random = self.world, self.world.randomness
        await asyncio.sleep(random.uniform(0.2, world.hello_s))
        await self._or_interrupted(self._ask("ContainerHello", Empty()))
        world.truth.user_code_began(self)
        await self._import()
        if self.function.clustered:
            request = api_pb2.TaskClusterHelloRequest(task_id=self.spec.task_id, container_ip=self.spec.ipv6)
            hello = await self._or_interrupted(self._ask("TaskClusterHello", request))
            world.truth.cluster_hello(self, hello)
        beating = begin(self._beat())
        try:
            await self._take_inputs()
        except Interrupted:
            while self._works and not self._over.done():    # what runs cleans up first
                await asyncio.wait([self._over, *self._works], return_when=asyncio.FIRST_COMPLETED)
            raise
        finally:
            beating.cancel()

    async def _take_inputs(self) -> None:
        """One request for inputs after the other, while a slot is free for one; until it is told to leave, and what it has is done."""
        slots = asyncio.Semaphore(self.function.concurrent)
        while True:
            await self._or_interrupted(slots.acquire())
            response = await self._or_interrupted(self._ask("FunctionGetInputs", api_pb2.FunctionGetInputsRequest()))
            for item in response.inputs:
                if item.kill_switch:
                    break
                work = begin(self._work_in(slots, item))
                self._works[work] = None
                work.add_done_callback(self._works.pop)
            else:
                if not response.inputs:
                    slots.release()
                if not (response.inputs and self.function.single_use):      # the stock runner leaves by itself then
                    continue
            while self._works:
                await self._or_interrupted(asyncio.wait(list(self._works)))
            return

    async def _work_in(self, slots: asyncio.Semaphore, item: Any) -> None:
        try:
            await self._work(item)
        except Exception as error:      # the end of the process, whatever else it does
            if not self._over.done():
                self._over.set_exception(error)
        finally:
            slots.release()

    async def _import(self) -> None:
        """The user's module, and @enter: they may fail, die, or take longer than they may."""
        world, random, function = self.world, self.world.randomness, self.function
        takes_s = function.import_s(random)
        if takes_s >= function.startup_limit_s:
            world.truth.user_fault(self, "", "startup")
        await self._or_interrupted(asyncio.sleep(takes_s))
        if random.random() < max(world.die_in_import, function.broken / 2):
            world.truth.user_fault(self, "", "import")
            raise Left(code=1)
        if random.random() < max(world.raise_in_import, function.broken):
            world.truth.user_fault(self, "", "import")
            result = Result(status=Result.GENERIC_STATUS_FAILURE, exception="ImportError('weather')")
            await self._ask("TaskResult", api_pb2.TaskResultRequest(result=result))
            raise Left(code=1)

    async def _beat(self) -> None:
        """Cancellations come through heartbeats. Ranks without an input need none here: it saves the half of all events."""
        while True:
            if not self.open_inputs:
                self._cancel_wake.clear()
                await self._cancel_wake.wait()
                continue
            try:
                response = await self._ask("ContainerHeartbeat", api_pb2.ContainerHeartbeatRequest(), idempotent=False)
            except GRPCError:
                continue
            self._cancelled.update(response.cancel_input_event.input_ids)
            self._cancel_wake.set()
            await asyncio.sleep(1)

    async def _work(self, item: Any) -> None:
        world, function = self.world, self.function
        await self._or_interrupted(asyncio.sleep(0))
        world.truth.input_began(self, item)
        self.open_inputs[item.input_id] = item.retry_count + 1
        self._cancel_wake.set()
        program = function.program(item.input_id, item.retry_count, self.spec.rank, self.size)
        self.ignores_signals = program.stubborn
        try:
            result = await self._run(program, item)
        finally:
            self.ignores_signals = False
            self.open_inputs.pop(item.input_id, None)
            world.truth.input_left(self, item)
        output = api_pb2.FunctionPutOutputsItem(input_id=item.input_id, result=result, retry_count=item.retry_count)
        await self._ask("FunctionPutOutputs", api_pb2.FunctionPutOutputsRequest(outputs=[output]))
        if function.leaves(item.input_id, item.retry_count, self.spec.rank) == "stop":      # stop_fetching_inputs()
            await self._ask("ContainerStop", api_pb2.ContainerStopRequest(task_id=self.spec.task_id))

    async def _run(self, program: Any, item: Any) -> Any:
        ends = asyncio.get_running_loop().time() + program.seconds
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            if self._interrupted.is_set():
                await asyncio.sleep(program.cleanup_s)
                raise Interrupted
            if item.input_id in self._cancelled and not program.stubborn:
                return Result(status=Result.GENERIC_STATUS_TERMINATED, exception="cancelled")
            self._cancel_wake.clear()
            try:
                await asyncio.wait_for(self._cancel_wake.wait(), left)
            except TimeoutError:
                break
        truth = self.world.truth
        match program.end:
            case "ok":
                truth.returned(self, item)
                return Result(status=Result.GENERIC_STATUS_SUCCESS, data=expected(bytes(item.input.args)))
            case "raise":
                truth.user_fault(self, item.input_id, "exception")
                return Result(status=Result.GENERIC_STATUS_FAILURE, exception=f"ValueError('rank {self.spec.rank}')")
            case "exit":
                truth.user_fault(self, item.input_id, "exit")
                raise Left(code=3)
            case "segv":
                truth.user_fault(self, item.input_id, "signal")
                raise Left(signal=11)
            case "oom":
                truth.user_fault(self, item.input_id, "oom")
                raise Left(signal=9, oom=True)
        raise AssertionError(program.end)

    # ------------------------------------------------------------ the runner's way to the control plane

    async def _ask(self, name: str, request: Any, idempotent: bool = True) -> Any:
        """Until it is answered: the front keeps runners waiting while the server is away. One key for all tries."""
        self._keys += 1
        key = f"{self.spec.task_id}-{self._keys}" if idempotent else ""
        spec, plane = self.spec, self.world.plane
        refused_since: float | None = None
        while True:
            try:
                if self.host.is_cut:
                    raise Away(name)
                return await plane.task_rpc(spec.task_id, spec.assignment, spec.rank, spec.task_secret, name, request, key)
            except Away:
                # The shim's door is closed to assignments that are over, and the runner does not wait for ever.
                now = asyncio.get_running_loop().time()
                over = plane.is_up and not self.host.is_cut and spec.assignment not in plane.server.gangs.running
                refused_since = (refused_since or now) if over else None
                if refused_since is not None and now - refused_since > 30:
                    raise
                await asyncio.sleep(self.world.randomness.uniform(0.1, 2))

    async def _or_interrupted(self, work: Any) -> Any:
        """A signal while the runner waits ends it."""
        working, signalled = begin(_as_coroutine(work)), begin(self._interrupted.wait())
        try:
            await asyncio.wait([working, signalled, self._over], return_when=asyncio.FIRST_COMPLETED)
        finally:
            signalled.cancel()
            if not working.done():
                working.cancel()
        if self._over.done():
            self._over.result()
        if working.done() and not working.cancelled():
            return working.result()
        raise Interrupted


async def _as_coroutine(work: Any) -> Any:
    return await work


def expected(arguments: bytes) -> bytes:
    """What every function of this world returns."""
    return b"result of " + arguments
