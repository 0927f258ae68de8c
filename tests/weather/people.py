"""Users: each makes an app, calls its functions, waits for the results as the client does, changes his mind, or goes away."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from grpclib.exceptions import GRPCError
from modal_proto import api_pb2

from phalanx.model.caller import Caller
from phalanx.server.clients import OWN_PYTHON
from tests.weather.functions import WeatherFunction, some_function
from tests.weather.lives import begin
from tests.weather.plane import MODAL, Away
from tests.weather.truth import CallTruth

BEAT_S = 15.0


class Person:
    def __init__(self, world: Any, number: int) -> None:
        self.world, self.number = world, number
        self.random = random.Random(f"{world.seed} person {number}")
        self._keys = 0
        self._functions = 0

    async def live(self) -> None:
        """One app after the other, until the day is over."""
        while not self.world.is_evening:
            await self._session()
            await asyncio.sleep(self.random.expovariate(1 / self.world.think_s))

    async def ask(self, name: str, request: Any, idempotent: bool = True) -> Any:
        """Until it is answered, as the stock client in front of a front: with one idempotency key."""
        self._keys += 1
        key = f"person-{self.number}-{self._keys}" if idempotent else ""
        caller = Caller(self.world.config.token_id, client_version=MODAL, python_version=OWN_PYTHON, idempotency_key=key)
        while True:
            try:
                return await self.world.plane.rpc(caller, name, request)
            except Away:
                await asyncio.sleep(self.random.uniform(0.1, 1.5))

    # ------------------------------------------------------------ one app

    async def _session(self) -> None:
        dice, truth = self.random, self.world.truth
        state = dice.choice([api_pb2.APP_STATE_DETACHED, api_pb2.APP_STATE_EPHEMERAL, api_pb2.APP_STATE_INITIALIZING])
        is_deployed = state == api_pb2.APP_STATE_INITIALIZING
        request = api_pb2.AppCreateRequest(description="weather", app_state=state)
        app_id = (await self.ask("AppCreate", request)).app_id
        beating = begin(self._beat(app_id))
        waits: list[asyncio.Task[None]] = []
        try:
            functions = [await self._function(app_id) for _ in range(dice.randint(1, 2))]
            if is_deployed:
                name = f"deployed-{self.number}-{self._keys}"
                ids = {function.name: function.function_id for function in functions}
                request = api_pb2.AppPublishRequest(app_id=app_id, name=name, app_state=api_pb2.APP_STATE_DEPLOYED, function_ids=ids)
                await self.ask("AppPublish", request)
            calls: list[CallTruth] = []
            for _ in range(dice.randint(1, self.world.calls_each)):
                call = await self._call(dice.choice(functions))
                calls.append(call)
                waits.append(begin(self._wait(call)))
                if dice.random() < self.world.change_mind:
                    waits.append(begin(self._cancel_later(call)))
                await asyncio.sleep(dice.expovariate(1 / 60))
            if dice.random() < self.world.change_mind:
                await asyncio.sleep(dice.expovariate(1 / 600))
                for call in calls:
                    call.may_be_terminated = True
                request = api_pb2.AppStopRequest(app_id=app_id, source=api_pb2.APP_STOP_SOURCE_CLI)
                await self.ask("AppStop", request)
                truth.counts["apps stopped"] += 1
            if dice.random() < self.world.change_mind:      # its machine is gone; what it has called may go on where it is detached
                truth.counts["clients gone"] += 1
                for call in calls if state == api_pb2.APP_STATE_EPHEMERAL else []:
                    call.may_be_terminated = True
                beating.cancel()
            await asyncio.gather(*waits)
        finally:
            for task in (beating, *waits):
                task.cancel()
        if is_deployed:
            await self.ask("AppStop", api_pb2.AppStopRequest(app_id=app_id, source=api_pb2.APP_STOP_SOURCE_CLI))
        await self.ask("AppClientDisconnect", api_pb2.AppClientDisconnectRequest(app_id=app_id))
        truth.counts["apps"] += 1

    async def _beat(self, app_id: str) -> None:
        while True:
            await self.ask("AppHeartbeat", api_pb2.AppHeartbeatRequest(app_id=app_id), idempotent=False)
            await asyncio.sleep(BEAT_S)

    async def _function(self, app_id: str) -> WeatherFunction:
        while True:
            self._functions += 1
            function, definition = some_function(self.random, f"f{self.number}-{self._functions}", self.world.seed, self.world.largest)
            self.world.functions[function.name] = function
            request = api_pb2.FunctionCreateRequest(app_id=app_id, function=definition)
            try:
                function.function_id = (await self.ask("FunctionCreate", request)).function_id
            except GRPCError as refusal:
                if "can never fit" not in str(refusal.message):
                    raise
                await asyncio.sleep(60)     # nodes were removed for good, and their successors are not there yet
            else:
                return function

    async def _call(self, function: WeatherFunction) -> CallTruth:
        """One input, or several with the call, or a batch of spawned ones that come in lots."""
        count = self.random.choices([1, self.random.randint(2, 8), self.random.randint(9, 40)], [0.7, 0.25, 0.05])[0]
        arguments = [f"{function.name} {self._keys} {n}".encode() for n in range(count)]
        items = [api_pb2.FunctionPutInputsItem(idx=n, input=api_pb2.FunctionInput(args=args)) for n, args in enumerate(arguments)]
        is_batch = count > 8
        invocation = api_pb2.FUNCTION_CALL_INVOCATION_TYPE_ASYNC if is_batch else api_pb2.FUNCTION_CALL_INVOCATION_TYPE_SYNC
        request = api_pb2.FunctionMapRequest(
            function_id=function.function_id, pipelined_inputs=[] if is_batch else items,
            function_call_type=api_pb2.FUNCTION_CALL_TYPE_UNARY if count == 1 else api_pb2.FUNCTION_CALL_TYPE_MAP,
            function_call_invocation_type=invocation,
        )  # fmt: skip
        call_id = (await self.ask("FunctionMap", request)).function_call_id
        self.world.truth.counts["calls acknowledged"] += 1
        call = self.world.truth.calls[call_id] = self.world.truth.ever[call_id] = CallTruth(call_id, function, arguments)
        while is_batch and items:
            lot, items = items[:10], items[10:]
            await self.ask("FunctionPutInputs", api_pb2.FunctionPutInputsRequest(function_call_id=call_id, inputs=lot))
        if count > 1:
            finish = api_pb2.FunctionFinishInputsRequest(function_call_id=call_id, num_inputs=count)
            await self.ask("FunctionFinishInputs", finish)
        return call

    async def _wait(self, call: CallTruth) -> None:
        """Poll for outputs, from the last one seen."""
        last = "0-0"
        while len(call.got) < len(call.arguments):
            request = api_pb2.FunctionGetOutputsRequest(function_call_id=call.call_id, timeout=55, last_entry_id=last, max_values=100)
            response = await self.ask("FunctionGetOutputs", request, idempotent=False)
            for item in response.outputs:
                self.world.truth.got(call, item)
            last = response.last_entry_id
        del self.world.truth.calls[call.call_id]

    async def _cancel_later(self, call: CallTruth) -> None:
        await asyncio.sleep(self.random.expovariate(1 / 300))
        call.may_be_terminated = True
        terminate = self.random.random() < 0.3
        request = api_pb2.FunctionCallCancelRequest(function_call_id=call.call_id, terminate_containers=terminate)
        try:
            await self.ask("FunctionCallCancel", request)
            self.world.truth.counts["calls cancelled"] += 1
        except GRPCError as error:
            self.world.truth.say_wrong(f"{call.call_id} can't be cancelled: {error.message}")
