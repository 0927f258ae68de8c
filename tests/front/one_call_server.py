"""A server of one function call, just enough for `modal run`: python one_call_server.py STATE. kill -9 it and start it again.

Files in STATE tell both sides: `waiting` (the client waits for its output), `answer` (the pickled value to return).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from google.protobuf import empty_pb2, message_factory
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from modal_proto import api_pb2 as api

from phalanx.front.loan import borrow
from phalanx.paths import Paths

SUCCESS = api.GenericResult(status=api.GenericResult.GENERIC_STATUS_SUCCESS)


class OneCallServer:
    def __init__(self, state: Path) -> None:
        self._state = state

    def __mapping__(self) -> dict[str, Handler]:
        return {f"/modal.client.ModalClient/{m.name}": self._handler(m) for m in api.DESCRIPTOR.services_by_name["ModalClient"].methods}

    def _handler(self, method: Any) -> Handler:
        async def handle(stream: Any) -> None:
            request = await stream.recv_message()
            answer = getattr(self, method.name, None)
            if answer is None:
                raise GRPCError(Status.UNIMPLEMENTED, method.name)
            reply = await answer(request)
            if reply is not None:
                await stream.send_message(reply)

        cardinality = Cardinality.UNARY_STREAM if method.server_streaming else Cardinality.UNARY_UNARY
        return Handler(handle, cardinality, *map(message_factory.GetMessageClass, (method.input_type, method.output_type)))

    async def AppCreate(self, request: Any) -> Any:
        return api.AppCreateResponse(app_id="ap-1")

    async def EnvironmentGetOrCreate(self, request: Any) -> Any:
        settings = api.EnvironmentSettings(image_builder_version="2025.06")
        return api.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=api.EnvironmentMetadata(name="main", settings=settings))

    async def FunctionPrecreate(self, request: Any) -> Any:
        return api.FunctionPrecreateResponse(function_id="fu-1", handle_metadata=self._handle(request))

    async def AppHeartbeat(self, request: Any) -> Any:
        return empty_pb2.Empty()

    async def AppGetLogs(self, request: Any) -> Any:
        await appears(self._state / "disconnected")
        return api.TaskLogsBatch(app_done=True)

    async def MountGetOrCreate(self, request: Any) -> Any:
        return api.MountGetOrCreateResponse(mount_id="mo-1", handle_metadata=api.MountHandleMetadata(content_checksum_sha256_hex="0" * 64))

    async def MountBatchedCheckExistence(self, request: Any) -> Any:
        return api.MountBatchedCheckExistenceResponse()

    async def ImageGetOrCreate(self, request: Any) -> Any:
        return api.ImageGetOrCreateResponse(image_id="im-1", result=SUCCESS, metadata=api.ImageMetadata())

    async def FunctionCreate(self, request: Any) -> Any:
        reply = api.FunctionCreateResponse(function_id="fu-1", function=request.function, handle_metadata=self._handle(request.function))
        reply.function_data.ranked_functions.add(function=request.function)
        return reply

    async def AppPublish(self, request: Any) -> Any:
        return api.AppPublishResponse()

    async def AppClientDisconnect(self, request: Any) -> Any:
        (self._state / "disconnected").touch()
        return empty_pb2.Empty()

    async def FunctionMap(self, request: Any) -> Any:
        inputs = [api.FunctionPutInputsResponseItem(input_id="in-1")]
        return api.FunctionMapResponse(function_call_id="fc-1", pipelined_inputs=inputs, retry_policy=api.FunctionRetryPolicy())

    async def FunctionGetOutputs(self, request: Any) -> Any:
        (self._state / "waiting").touch()
        answer = self._state / "answer"
        await appears(answer)
        result = api.GenericResult(status=api.GenericResult.GENERIC_STATUS_SUCCESS, data=answer.read_bytes())
        output = api.FunctionGetOutputsItem(result=result, input_id="in-1", data_format=api.DATA_FORMAT_PICKLE)
        return api.FunctionGetOutputsResponse(outputs=[output], last_entry_id="1-0")

    def _handle(self, function: Any) -> Any:
        return api.FunctionHandleMetadata(function_name=function.function_name, function_type=function.function_type, definition_id="de-1")


async def appears(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.05)


async def main() -> None:
    state = Path(sys.argv[1])
    loan = await borrow(Paths(state).front_socket)
    server = Server([OneCallServer(state)])
    await server.start(sock=loan.public, backlog=4096)
    await loan.serving()
    print("serving", flush=True)
    await loan.lost.wait()


if __name__ == "__main__":
    asyncio.run(main())
