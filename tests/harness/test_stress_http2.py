"""The server's own HTTP/2 against another implementation of it (grpclib on h2): large messages, many at once, and what breaks the rules."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.config import Configuration
from grpclib.exceptions import GRPCError
from hpack import Encoder
from modal_proto import api_pb2

from phalanx.api.http2_frames import DATA, END_HEADERS, END_STREAM, HEADERS, frame
from tests.harness.callers import Caller
from tests.harness.control_plane import LOCAL, ControlPlane

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def test_an_argument_larger_than_every_window_arrives_whole_and_comes_back(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(1)

    async def back(rank: Any, item: Any) -> Any:
        return item.input.args

    nodes.program = back
    caller = Caller(control_plane)
    function_id = caller.function()
    large = bytes(range(256)) * (80 << 10)      # 20 MiB: the windows are 16
    item = api_pb2.FunctionPutInputsItem(idx=0, input=api_pb2.FunctionInput(args=large))
    request = api_pb2.FunctionMapRequest(function_id=function_id, function_call_type=1, pipelined_inputs=[item])
    call_id = control_plane.rpc("FunctionMap", request).function_call_id
    assert caller.result(call_id) == large


def test_a_client_with_the_smallest_windows_gets_large_answers_in_parts(control_plane: ControlPlane, fleet: Any) -> None:
    nodes = fleet(1)

    async def long_text(rank: Any, item: Any) -> Any:
        return "x" * 2_000_000

    nodes.program = long_text
    caller = Caller(control_plane)
    call_id = caller.call(caller.function())
    assert caller.result(call_id) == "x" * 2_000_000

    async def ask() -> Any:
        small = Configuration(http2_connection_window_size=65_535, http2_stream_window_size=65_535)
        channel = Channel(LOCAL, control_plane.port, config=small)
        request = api_pb2.FunctionGetOutputsRequest(function_call_id=call_id, last_entry_id="0-0", timeout=1)
        try:
            return await asyncio.gather(*(method(channel)(request, metadata=metadata(control_plane)) for _ in range(20)))
        finally:
            channel.close()

    answers = control_plane.call(ask)
    assert len(answers) == 20 and all(len(answer.outputs[0].result.data) > 2_000_000 for answer in answers)


def test_many_polls_of_one_connection_wait_at_once_and_end_with_their_client(control_plane: ControlPlane, fleet: Any) -> None:
    caller = Caller(control_plane)
    call_id = caller.call(caller.function())    # no fleet: nothing comes

    async def ask() -> int:
        channel = Channel(LOCAL, control_plane.port)
        request = api_pb2.FunctionGetOutputsRequest(function_call_id=call_id, last_entry_id="0-0", timeout=50)
        polls = [asyncio.ensure_future(method(channel)(request, metadata=metadata(control_plane))) for _ in range(300)]
        waiters = control_plane.server.topics._waiters
        await reached(lambda: len(waiters.get(("outputs", call_id), ())) == 300)
        channel.close()
        await asyncio.gather(*polls, return_exceptions=True)
        await reached(lambda: not waiters.get(("outputs", call_id)))
        return len(polls)

    assert control_plane.call(ask) == 300


def test_a_deadline_ends_a_poll_with_its_status(control_plane: ControlPlane) -> None:
    caller = Caller(control_plane)
    call_id = caller.call(caller.function())

    request = api_pb2.FunctionGetOutputsRequest(function_call_id=call_id, last_entry_id="0-0", timeout=50).SerializeToString()
    path = "/modal.client.ModalClient/FunctionGetOutputs"
    headers = {":method": "POST", ":scheme": "http", ":path": path, "content-type": "application/grpc", "grpc-timeout": "50m"}
    headers |= metadata(control_plane)
    block = Encoder().encode(list(headers.items()))
    body = b"\0" + len(request).to_bytes(4, "big") + request
    with socket.create_connection((LOCAL, control_plane.port), timeout=30) as connection:
        connection.sendall(PREFACE + frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, body))
        heard = b""
        while b"grpc-status\x014" not in heard:
            heard += (part := connection.recv(4096))
            assert part, "the connection ended without a status"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (PREFACE + b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0", 1),              # a window update of nothing
        (PREFACE + b"\0\0\x02\x08\0\0\0\0\0\0\0", 6),                  # a window update cut short
        (PREFACE + b"\x40\0\0\0\0\0\0\0\x01", 6),                       # a frame of four megabytes
        (PREFACE + b"\0\0\0\x09\x04\0\0\0\x01", 1),                     # a continuation of nothing
        (PREFACE + b"\0\0\x03\x01\x05\0\0\0\x01\xff\xff\xff", 9),       # headers that can't be decompressed
        (PREFACE + b"\0\0\x01\x00\x00\0\0\0\x07x", 1),                  # data of no request
        (PREFACE.replace(b"SM", b"XX"), 1),
    ],
)  # fmt: skip
def test_a_connection_that_breaks_the_protocol_is_told_so_and_closed(control_plane: ControlPlane, said: bytes, code: int) -> None:
    with socket.create_connection((LOCAL, control_plane.port), timeout=10) as connection:
        connection.sendall(said)
        heard = b""
        while part := connection.recv(4096):
            heard += part
    last = heard[heard.rindex(b"\x07\0\0\0\0\0") + 6 :] if code else b""
    assert int.from_bytes(last[4:8], "big") == code


def test_an_unknown_method_is_refused_and_the_connection_goes_on(control_plane: ControlPlane) -> None:
    async def ask() -> str:
        channel = Channel(LOCAL, control_plane.port)
        try:
            unknown = UnaryUnaryMethod(channel, "/modal.client.ModalClient/Nothing", api_pb2.AppListRequest, api_pb2.AppListResponse)
            with pytest.raises(GRPCError, match="UNIMPLEMENTED"):
                await unknown(api_pb2.AppListRequest())
            known = UnaryUnaryMethod(channel, "/modal.client.ModalClient/AppList", api_pb2.AppListRequest, api_pb2.AppListResponse)
            await known(api_pb2.AppListRequest(), metadata=metadata(control_plane))
            return "goes on"
        finally:
            channel.close()

    assert control_plane.call(ask) == "goes on"


async def reached(condition: Callable[[], bool]) -> None:
    """As `until`, in the loop itself."""
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not come true")


def method(channel: Channel) -> Any:
    path = "/modal.client.ModalClient/FunctionGetOutputs"
    return UnaryUnaryMethod(channel, path, api_pb2.FunctionGetOutputsRequest, api_pb2.FunctionGetOutputsResponse)


def metadata(plane: ControlPlane) -> dict[str, str]:
    return {
        "x-modal-client-version": "1.6.4", "x-modal-client-type": "1", "x-modal-token-id": plane.config.token_id,
        "x-modal-token-secret": plane.config.token_secret,
    }  # fmt: skip
