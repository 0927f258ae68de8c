"""Requests whose client gives up at a bad moment: what is decided stays decided, and the next try gets its answer (rule 6)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hpack import Encoder
from modal_proto import api_pb2

from phalanx.api.http2 import PREFACE
from phalanx.api.http2_frames import DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, frame
from tests.harness.callers import Caller
from tests.harness.control_plane import LOCAL, ControlPlane
from tests.harness.waiting import until

GIVEN_UP = b"\0\0\0\x08"


class Client:
    """One connection, byte by byte."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._encoder = Encoder()
        self.socket = socket.create_connection((LOCAL, plane.port), timeout=30)
        self.socket.sendall(PREFACE + frame(4, 0, 0, b""))
        self.heard = self.socket.recv(65_536)       # its settings: it knows us now

    def ask(self, stream: int, rpc: str, request: Any, key: str) -> bytes:
        headers = {
            ":method": "POST", ":scheme": "http", ":path": f"/modal.client.ModalClient/{rpc}", "content-type": "application/grpc",
            "x-modal-client-version": "1.6.4", "x-modal-token-id": self._plane.config.token_id,
            "x-modal-token-secret": self._plane.config.token_secret, "x-idempotency-key": key,
        }  # fmt: skip
        data = request.SerializeToString()
        body = b"\0" + len(data).to_bytes(4, "big") + data
        return frame(HEADERS, END_HEADERS, stream, self._encoder.encode(list(headers.items()))) + frame(DATA, END_STREAM, stream, body)

    def answer(self, stream: int, response_class: Any) -> Any:
        """Wait for the end of a stream."""
        message = b""
        while True:
            while len(self.heard) < 9 or len(self.heard) < 9 + int.from_bytes(self.heard[:3], "big"):
                part = self.socket.recv(65_536)
                assert part, "the connection ended"
                self.heard += part
            size = int.from_bytes(self.heard[:3], "big")
            head, payload, self.heard = self.heard[:9], self.heard[9 : 9 + size], self.heard[9 + size :]
            if int.from_bytes(head[5:9], "big") != stream:
                continue
            if head[3] == DATA:
                message += payload
            if head[4] & END_STREAM:
                assert b"grpc-status\x010" in payload, payload
                return response_class.FromString(message[5:])


def test_a_poll_that_is_given_up_and_asked_again_in_one_breath_is_answered(control_plane: ControlPlane, fleet: Any) -> None:
    caller = Caller(control_plane)
    call_id = caller.call(caller.function())
    request = api_pb2.FunctionGetOutputsRequest(function_call_id=call_id, last_entry_id="0-0", timeout=50)
    waiters = control_plane.server.topics._waiters
    client = Client(control_plane)
    client.socket.sendall(client.ask(1, "FunctionGetOutputs", request, "the same"))
    until(lambda: waiters.get(("outputs", call_id)))
    again = [client.ask(stream, "FunctionGetOutputs", request, "the same") for stream in (3, 5)]
    client.socket.sendall(frame(RST_STREAM, 0, 1, GIVEN_UP) + b"".join(again))
    fleet(1)
    for stream in (3, 5):
        assert len(client.answer(stream, api_pb2.FunctionGetOutputsResponse).outputs) == 1
    client.socket.close()


@pytest.mark.parametrize("turns", range(8))
def test_a_change_that_is_given_up_at_any_moment_happens_once_or_not_at_all(control_plane: ControlPlane, turns: int) -> None:
    """And the next try under its key gets the answer that was kept, once it is on disk."""
    database = control_plane.server.database
    request = api_pb2.AppCreateRequest(description=f"given up after {turns}", app_state=api_pb2.APP_STATE_DETACHED)
    client = Client(control_plane)
    first, again = client.ask(1, "AppCreate", request, "key"), client.ask(3, "AppCreate", request, "key")
    reset = frame(RST_STREAM, 0, 1, GIVEN_UP)

    async def give_up() -> tuple[str, bool]:
        """In the server's own loop, so that the turns are counted; says what was answered, and if it was on disk by then."""
        connection = connection_of(control_plane)
        connection.data_received(first)
        for _ in range(turns):
            await asyncio.sleep(0)
        connection.data_received(reset)
        connection.data_received(again)
        on_disk = []

        def look(data: bytes, write: Callable[[bytes], None] = connection.write) -> None:
            if b"ap-" in data:
                on_disk.append(database._latest is None or database._latest.done())
            write(data)

        connection.write = look     # type: ignore[method-assign]
        return await asyncio.to_thread(lambda: client.answer(3, api_pb2.AppCreateResponse).app_id), all(on_disk)

    app_id, was_on_disk = control_plane.call(give_up)
    client.socket.close()
    assert was_on_disk
    listed = control_plane.rpc("AppList", api_pb2.AppListRequest()).apps
    assert [app.app_id for app in listed] == [app_id]


def connection_of(plane: ControlPlane) -> Any:
    """The server's end of the only connection."""
    (connection,) = [one for one in plane._listener._handlers if one._transport is not None and not one._transport.is_closing()]
    return connection
