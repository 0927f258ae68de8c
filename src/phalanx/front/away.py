"""The answers that keep everybody waiting while there is no server. docs/waiting-clients.md has the measurements.

The rule: hold every request until the server returns, then cut the connection; all clients send a cut request again, under
the same idempotency key. A request with a deadline that would run out first gets an answer that makes its sender ask anew,
so that a cut is the only retry which an absence costs it (the clients give up after the fourth failure of one request).
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase, StatusDetailsCodecBase
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

EMPTY = b""
UNFINISHED_INPUT = b"\x30\x01"      # FunctionGetOutputsResponse.num_unfinished_inputs = 1: with 0, fc.get() says "expired"
LONG_POLL_S = 50.0                  # FunctionGetInputs and AppGetLogs carry no deadline; the server holds them about as long
OUTPUTS_GRACE_S = 4.0               # a client's deadline for FunctionGetOutputs is its timeout plus this
BEFORE_DEADLINE_S = 2.0
RETRY_AFTER_S = 1.0
FAREWELL_S = 0.1                    # for the last answers to arrive before the connections are cut


class AwayAnswers:
    """A gRPC server for every method there is: `protocol()` makes one connection's protocol. `leave()` sends all callers over."""

    def __init__(self) -> None:
        self._returned = asyncio.Event()
        self._server = Server([], codec=_Bytes(), status_details_codec=_RetryPolicy())
        self._server._mapping = _EveryMethod(self._answer)     # grpclib knows only lists of methods; clients have 285 and more
        self._connections: set[H2Protocol] = set()
        self._held: set[asyncio.Transport] = set()

    def protocol(self) -> H2Protocol:
        connection = self._server._protocol_factory()
        self._connections = {c for c in self._connections if not _is_closed(c)} | {connection}
        return connection

    def hold(self, transport: asyncio.Transport) -> None:
        """A caller who is not answered at all, only kept until the server is back."""
        self._held = {t for t in self._held if not t.is_closing()} | {transport}

    def callers(self) -> int:
        """How many connections wait here."""
        return sum(not _is_closed(c) for c in self._connections) + sum(not t.is_closing() for t in self._held)

    async def leave(self) -> None:
        """The server is back: answer what can be answered, cut the rest, so that everybody connects again."""
        self._returned.set()
        await asyncio.sleep(FAREWELL_S)
        self.cut()

    def cut(self) -> None:
        for connection in self._connections:
            if not _is_closed(connection):
                connection.processor.close("the server is back")
        for transport in self._held:
            transport.abort()
        self._connections.clear()
        self._held.clear()

    async def _answer(self, stream: Stream[bytes, bytes]) -> None:
        service, method = stream._method_name.strip("/").split("/")        # grpclib tells it by this name only
        if service.startswith("phalanx."):
            raise GRPCError(Status.UNAVAILABLE, "the Phalanx server is not running; its front is, and keeps clients waiting")
        await stream.recv_message()     # read and dropped: unread data would block the connection's other requests
        if self._returned.is_set():
            await _forever()            # this connection is about to be cut
        left = stream.deadline.time_remaining() if stream.deadline else None
        if method == "AppHeartbeat":
            await stream.send_message(EMPTY)
        elif method == "FunctionGetOutputs":
            await self._hold(max(0.0, (left or 0.0) - OUTPUTS_GRACE_S))
            await stream.send_message(UNFINISHED_INPUT)
        elif method == "AppGetLogs":
            await self._hold(LONG_POLL_S)      # ended without a message; an error would make the client ask without a pause
        elif method == "FunctionGetInputs":
            await self._hold(LONG_POLL_S)
            await stream.send_message(EMPTY)
        elif method == "ContainerHeartbeat":
            await self._hold((left or LONG_POLL_S) - BEFORE_DEADLINE_S)
            await stream.send_message(EMPTY)
        elif left is None:
            await _forever()
        else:
            await asyncio.sleep(max(0.0, left - BEFORE_DEADLINE_S))
            raise GRPCError(Status.UNAVAILABLE, "the Phalanx server is restarting", details=RETRY_AFTER_S)

    async def _hold(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._returned.wait(), seconds)
        except TimeoutError:
            return


def _is_closed(connection: H2Protocol) -> bool:
    return hasattr(connection, "connection") and connection.connection.is_closing()        # it has one once it is made


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


class _EveryMethod(dict[str, Handler]):
    """A mapping that has one handler for all names. On the wire a unary call is a stream of one message."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._handler = Handler(answer, Cardinality.STREAM_STREAM, bytes, bytes)

    def get(self, key: str, default: Any = None) -> Handler:
        return self._handler


class _Bytes(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: Any) -> bytes:
        return message

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


class _RetryPolicy(StatusDetailsCodecBase):
    """google.rpc.Status with one RPCRetryPolicy{retry_after_secs}: clients since 1.3.5 wait that long and ask again, forever."""

    def encode(self, status: Status, message: str | None, details: float) -> bytes:
        policy = b"\x0d" + struct.pack("<f", details)
        packed = _field(1, b"type.modal.com/modal.client.RPCRetryPolicy") + _field(2, policy)
        return bytes([0x08, status.value]) + _field(2, (message or "").encode()) + _field(3, packed)

    def decode(self, status: Status, message: str | None, data: bytes) -> None:
        return None


def _field(number: int, data: bytes) -> bytes:
    assert len(data) < 128      # one byte holds the length
    return bytes([number << 3 | 2, len(data)]) + data
