"""A throw-away server that keeps no state: it answers every call at once with the same value. What is left is the client and grpclib.

python stateless.py FILE      serves until SIGTERM, and writes its port into FILE
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib.const import Cardinality, Handler
from grpclib.server import Server
from modal._serialization import serialize
from modal_proto import api_pb2


def function_get(request: Any) -> Any:
    metadata = api_pb2.FunctionHandleMetadata(function_name=request.object_tag, function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION)
    ranked = api_pb2.FunctionData.RankedFunction(rank=0, function=api_pb2.Function(function_name=request.object_tag))
    function = api_pb2.FunctionData(ranked_functions=[ranked])
    return api_pb2.FunctionGetResponse(function_id="fu-1", handle_metadata=metadata, function=function)


def function_map(request: Any) -> Any:
    items = [api_pb2.FunctionPutInputsResponseItem(idx=item.idx, input_id="in-1", input_jwt="in-1") for item in request.pipelined_inputs]
    return api_pb2.FunctionMapResponse(function_call_id="fc-1", pipelined_inputs=items)


def function_get_outputs(request: Any) -> Any:
    result = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS, data=serialize(0.0))
    output = api_pb2.FunctionGetOutputsItem(result=result, input_id="in-1", data_format=api_pb2.DATA_FORMAT_PICKLE)
    return api_pb2.FunctionGetOutputsResponse(outputs=[output], idxs=[0], last_entry_id="1-0")


ANSWERS = {
    "ClientHello": (Empty, api_pb2.ClientHelloResponse, lambda request: api_pb2.ClientHelloResponse()),
    "FunctionGet": (api_pb2.FunctionGetRequest, api_pb2.FunctionGetResponse, function_get),
    "FunctionMap": (api_pb2.FunctionMapRequest, api_pb2.FunctionMapResponse, function_map),
    "FunctionGetOutputs": (api_pb2.FunctionGetOutputsRequest, api_pb2.FunctionGetOutputsResponse, function_get_outputs),
}


class Stateless:
    def __mapping__(self) -> dict[str, Handler]:
        return {f"/modal.client.ModalClient/{name}": self._handler(*answer) for name, answer in ANSWERS.items()}

    def _handler(self, request_class: type, response_class: type, answer: Any) -> Handler:
        async def handle(stream: Any) -> None:
            await stream.send_message(answer(await stream.recv_message()))

        return Handler(handle, Cardinality.UNARY_UNARY, request_class, response_class)


async def main() -> None:
    server = Server([Stateless()])
    await server.start("127.0.0.1", 0)
    port = server._server.sockets[0].getsockname()[1]
    Path(sys.argv[1]).write_text(json.dumps({"port": port, "pid": os.getpid()}))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
