"""gRPC's C core as a client: another implementation than those of h2, with its own idea of pings, windows and when a request is whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from modal_proto import api_pb2

from tests.harness.callers import Caller
from tests.harness.control_plane import LOCAL, ControlPlane
from tests.harness.test_stress_http2 import metadata
from tests.harness.toy_service import Toy, toy
from tests.harness.waiting import until

grpc = pytest.importorskip("grpc")      # comes with what makes the protocol's files
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture
def channel() -> Iterator[tuple[Any, Toy]]:
    """To the toy, which runs in a thread of its own."""
    loop, over, started = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    found: list[Any] = []

    async def run() -> None:
        async with toy("ours") as served:
            found.extend(served)
            started.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    started.wait()
    with grpc.insecure_channel(f"{LOCAL}:{found[0]}", LARGE) as opened:
        yield opened, found[1]
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


def method(channel: Any, kind: str, name: str) -> Any:
    return getattr(channel, kind)(f"/toy.Toy/{name}", StringValue.SerializeToString, StringValue.FromString)


def texts(*values: str) -> Iterator[StringValue]:
    return (StringValue(value=value) for value in values)


def test_every_kind_of_method_and_size(channel: tuple[Any, Toy]) -> None:
    c_core, _ = channel
    echo = method(c_core, "unary_unary", "Echo")
    for size in (0, 1, 16_370, 16_380, 100_000, 3_000_000, 40_000_000):
        assert len(echo(StringValue(value="x" * size), timeout=30).value) == size
    counted = method(c_core, "unary_stream", "Count")(StringValue(value="500 " + "y" * 5000), timeout=30)
    assert [len(answer.value) for answer in counted] == [5000] * 500
    assert method(c_core, "stream_unary", "Gather")(texts("a", "", "c"), timeout=30).value == "a,,c"
    assert [a.value for a in method(c_core, "stream_stream", "Chat")(texts("a", "b" * 70_000), timeout=30)] == ["A", "B" * 70_000]


def test_errors_keep_their_status_and_sentence(channel: tuple[Any, Toy]) -> None:
    c_core, _ = channel
    sentence = "100 % of “net-2”\n\tgone 🚀" + " and so on" * 300
    with pytest.raises(grpc.RpcError) as error:
        method(c_core, "unary_unary", "Echo")(StringValue(value=f"fail 9 {sentence}"))
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, sentence)
    with pytest.raises(grpc.RpcError) as error:
        method(c_core, "unary_unary", "Nothing")(StringValue())
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
    broken = method(c_core, "unary_stream", "Count")(StringValue(value="2 x!"))
    assert next(broken).value == next(broken).value == "x!"
    with pytest.raises(grpc.RpcError) as error:
        next(broken)
    assert error.value.code() == grpc.StatusCode.ABORTED


def test_deadlines_and_cancels_end_the_handler(channel: tuple[Any, Toy]) -> None:
    c_core, service = channel
    wait = method(c_core, "unary_unary", "Wait")
    with pytest.raises(grpc.RpcError) as error:
        wait(StringValue(), timeout=0.1)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    calls = [wait.future(StringValue()) for _ in range(1200)]      # more than streams may be open
    until(lambda: service.waiting == 1000)
    for call in calls:
        call.cancel()
    until(lambda: service.waiting == 0)
    assert method(c_core, "unary_unary", "Echo")(StringValue(value="on"), timeout=30).value == "on"


def test_a_hundred_calls_of_a_real_control_plane(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(2)

    async def back(rank: Any, item: Any) -> Any:
        return item.input.args

    nodes.program = back
    caller = Caller(control_plane)
    function_id = caller.function()
    said = list(metadata(control_plane).items())
    with grpc.insecure_channel(f"{LOCAL}:{control_plane.port}", LARGE) as c_core:

        def ask(rpc: str, request: Any, response_class: Any) -> Any:
            call = c_core.unary_unary(f"/modal.client.ModalClient/{rpc}", type(request).SerializeToString, response_class.FromString)
            return call(request, metadata=said, timeout=60)

        def one(number: int) -> int:
            item = api_pb2.FunctionPutInputsItem(idx=0, input=api_pb2.FunctionInput(args=bytes(number * 2000)))
            request = api_pb2.FunctionMapRequest(function_id=function_id, function_call_type=1, pipelined_inputs=[item])
            call_id = ask("FunctionMap", request, api_pb2.FunctionMapResponse).function_call_id
            wanted = api_pb2.FunctionGetOutputsRequest(function_call_id=call_id, last_entry_id="0-0", timeout=50)
            (output,) = ask("FunctionGetOutputs", wanted, api_pb2.FunctionGetOutputsResponse).outputs
            return len(output.result.data)

        with ThreadPoolExecutor(20) as pool:
            sizes = list(pool.map(one, range(100)))
    assert all(size >= number * 2000 for number, size in enumerate(sizes))
