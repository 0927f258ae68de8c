"""A throw-away server that keeps no state: what is left of a call is the client, grpclib, and the ranks where it has some.

python stateless.py FILE [RANKS]      serves until SIGTERM, and writes its port into FILE

Without ranks it answers every call at once with the same value. With RANKS it starts so many stock runners of clustered_app.py as plain
processes, which ask it for inputs over a Unix socket as they ask Phalanx; a call is handed to all of them at once, and answered when all
have put their output. It remembers the one call that is under way, in a variable: nothing is checked, planned, written or kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from modal._serialization import serialize
from modal_proto import api_pb2

POLL_S = 50.0
APP_MODULE, FUNCTION = "clustered_app", "warm"


class Stateless:
    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._numbers = 0
        self._asking: list[asyncio.Future[Any]] = []    # ranks that wait for an input
        self._asked = asyncio.Event()
        self._put = 0
        self._result: asyncio.Future[Any] | None = None

    def __mapping__(self) -> dict[str, Handler]:
        answers = {
            "ClientHello": (Empty, api_pb2.ClientHelloResponse, self.nothing_said),
            "FunctionGet": (api_pb2.FunctionGetRequest, api_pb2.FunctionGetResponse, self.function_get),
            "FunctionMap": (api_pb2.FunctionMapRequest, api_pb2.FunctionMapResponse, self.function_map),
            "FunctionGetOutputs": (api_pb2.FunctionGetOutputsRequest, api_pb2.FunctionGetOutputsResponse, self.function_get_outputs),
            "ContainerHello": (Empty, Empty, self.nothing),
            "ContainerHeartbeat": (api_pb2.ContainerHeartbeatRequest, api_pb2.ContainerHeartbeatResponse, self.heartbeat),
            "FunctionGetInputs": (api_pb2.FunctionGetInputsRequest, api_pb2.FunctionGetInputsResponse, self.function_get_inputs),
            "FunctionPutOutputs": (api_pb2.FunctionPutOutputsRequest, Empty, self.function_put_outputs),
            "TaskResult": (api_pb2.TaskResultRequest, Empty, self.nothing),
        }
        return {f"/modal.client.ModalClient/{name}": _handler(*answer) for name, answer in answers.items()}

    async def nothing(self, request: Any) -> Any:
        return Empty()

    async def nothing_said(self, request: Any) -> Any:
        return api_pb2.ClientHelloResponse()

    async def function_get(self, request: Any) -> Any:
        metadata = api_pb2.FunctionHandleMetadata(function_name=request.object_tag, function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION)
        ranked = api_pb2.FunctionData.RankedFunction(rank=0, function=api_pb2.Function(function_name=request.object_tag))
        function = api_pb2.FunctionData(ranked_functions=[ranked])
        return api_pb2.FunctionGetResponse(function_id="fu-1", handle_metadata=metadata, function=function)

    async def function_map(self, request: Any) -> Any:
        self._numbers += 1
        items = []
        for item in request.pipelined_inputs:
            items.append(api_pb2.FunctionPutInputsResponseItem(idx=item.idx, input_id=f"in-{self._numbers}", input_jwt="in"))
            await self._hand_out(item.input)
        return api_pb2.FunctionMapResponse(function_call_id=f"fc-{self._numbers}", pipelined_inputs=items)

    async def _hand_out(self, content: Any) -> None:
        """To all ranks, once all ask."""
        while len(self._asking) < self._ranks:
            self._asked.clear()
            await self._asked.wait()
        given = api_pb2.FunctionGetInputsItem(input_id=f"in-{self._numbers}", input=content, function_call_id=f"fc-{self._numbers}")
        self._put, self._result = 0, asyncio.get_running_loop().create_future()
        if not self._ranks:
            success = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS, data=serialize(0.0))
            self._result.set_result(api_pb2.FunctionGetOutputsItem(result=success, data_format=api_pb2.DATA_FORMAT_PICKLE))
        for asking in self._asking:
            asking.set_result(api_pb2.FunctionGetInputsResponse(inputs=[given]))
        self._asking = []

    async def function_get_inputs(self, request: Any) -> Any:
        asking: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asking.append(asking)
        self._asked.set()
        try:
            return await asyncio.wait_for(asking, POLL_S)
        except TimeoutError:
            self._asking.remove(asking)
            return api_pb2.FunctionGetInputsResponse()

    async def function_put_outputs(self, request: Any) -> Any:
        self._put += 1
        if self._put == self._ranks and self._result is not None:
            item = request.outputs[0]
            self._result.set_result(api_pb2.FunctionGetOutputsItem(result=item.result, data_format=item.data_format))
        return Empty()

    async def function_get_outputs(self, request: Any) -> Any:
        assert self._result is not None
        output = await self._result
        output.input_id = f"in-{self._numbers}"
        return api_pb2.FunctionGetOutputsResponse(outputs=[output], idxs=[0], last_entry_id="1-0")

    async def heartbeat(self, request: Any) -> Any:
        await asyncio.sleep(13)
        return api_pb2.ContainerHeartbeatResponse()


def _handler(request_class: type, response_class: type, answer: Any) -> Handler:
    async def handle(stream: Any) -> None:
        await stream.send_message(await answer(await stream.recv_message()))

    return Handler(handle, Cardinality.UNARY_UNARY, request_class, response_class)


async def start_rank(folder: Path, rank: int) -> asyncio.subprocess.Process:
    definition = api_pb2.Function(module_name=APP_MODULE, function_name=FUNCTION, definition_type=api_pb2.Function.DEFINITION_TYPE_FILE,
                                  function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION,
                                  object_dependencies=[api_pb2.ObjectDependency(object_id="im-1")])  # fmt: skip
    known = api_pb2.Object(object_id="fu-1", function_handle_metadata=api_pb2.FunctionHandleMetadata(function_name=FUNCTION))
    layout = api_pb2.AppLayout(function_ids={FUNCTION: "fu-1"}, objects=[known, api_pb2.Object(object_id="im-1")])
    arguments = api_pb2.ContainerArguments(
        task_id=f"ta-{rank}", function_id="fu-1", app_id="ap-1", function_def=definition, app_layout=layout)
    path = folder / f"arguments-{rank}"
    path.write_bytes(arguments.SerializeToString())
    env = os.environ | {
        "MODAL_SERVER_URL": f"unix://{folder}/api.sock", "MODAL_TASK_ID": f"ta-{rank}", "MODAL_IS_REMOTE": "1",
        "MODAL_CONTAINER_ARGUMENTS_PATH": str(path), "PYTHONPATH": str(Path(__file__).parent), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "modal._container_entrypoint", env=env, stdin=asyncio.subprocess.DEVNULL, start_new_session=True)


async def main() -> None:
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    stateless = Stateless(ranks)
    server, inside = Server([stateless]), Server([stateless])
    await server.start("127.0.0.1", 0)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        await inside.start(path=f"{folder}/api.sock")
        running = [await start_rank(Path(folder), rank) for rank in range(ranks)]
        port = server._server.sockets[0].getsockname()[1]
        Path(sys.argv[1]).write_text(json.dumps({"port": port, "pid": os.getpid()}))
        await stopped.wait()
        for rank in running:
            rank.kill()
        await asyncio.gather(*(rank.wait() for rank in running))
    server.close()
    inside.close()


if __name__ == "__main__":
    asyncio.run(main())
