"""The answers that keep everybody waiting while there is no server. docs/waiting-clients.md has the measurements.

The rule: hold every request until the server returns, then cut the connection; all clients send a cut request again, under
the same idempotency key. A request with a deadline that would run out first gets an answer that makes its sender ask anew,
so that a cut is the only retry which an absence costs it (the clients give up after the fourth failure of one request).
"""

from __future__ import annotations

import asyncio
from typing import Any

from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase, StatusDetailsCodecBase
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream
from modal_proto import api_pb2

LONG_POLL_S = 50.0              # FunctionGetInputs carries no deadline; the server holds it about as long
BEFORE_DEADLINE_S = 2.0
RETRY_AFTER_S = 1.0
FAREWELL_S = 0.1                # for the last answers to arrive before the connections are cut


class AwayAnswers:
    """A gRPC server for every method there is: `protocol()` makes one connection's protocol. `leave()` sends all callers over."""

    def __init__(self) -> None:
        self._returned = asyncio.Event()
        self._server = Server([], codec=_Bytes(), status_details_codec=_Details())
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
        request = await stream.recv_message()       # always read: unread data would block the connection's other requests
        if request is None or self._returned.is_set():
            await _forever()            # this connection is about to be cut
        left = stream.deadline.time_remaining() if stream.deadline else None
        if method == "AppHeartbeat":
            await stream.send_message(b"")
        elif method == "FunctionGetOutputs":
            await stream.send_message(await self._no_outputs(request))
        elif method == "AppGetLogs":
            await self._no_logs(request)
        elif method == "FunctionGetInputs":
            await self._hold(LONG_POLL_S)
            await stream.send_message(b"")
        elif method == "ContainerHeartbeat":
            await self._hold((left or LONG_POLL_S) - BEFORE_DEADLINE_S)
            await stream.send_message(b"")
        elif left is None:
            await _forever()
        else:
            await asyncio.sleep(max(0.0, left - BEFORE_DEADLINE_S))
            policy = api_pb2.RPCRetryPolicy(retry_after_secs=RETRY_AFTER_S)
            raise GRPCError(Status.UNAVAILABLE, "the Phalanx server is restarting", details=[policy])

    async def _no_outputs(self, request: bytes) -> bytes:
        """Held as long as asked, then empty. With no unfinished input `fc.get()` would say that the call has expired; `.map()` goes
        on from the entry that the answer names."""
        asked = api_pb2.FunctionGetOutputsRequest.FromString(request)
        await self._hold(asked.timeout)
        return api_pb2.FunctionGetOutputsResponse(last_entry_id=asked.last_entry_id, num_unfinished_inputs=1).SerializeToString()

    async def _no_logs(self, request: bytes) -> None:
        """Ended without a word after the time asked for: after an error the client would ask again without a pause, for ever. One
        that doesn't follow (timeout 0) would take an end for "no logs", so it waits."""
        asked = api_pb2.AppGetLogsRequest.FromString(request)
        if not asked.timeout:
            await _forever()
        await self._hold(asked.timeout)

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


class _Details(StatusDetailsCodecBase):
    """As google.rpc.Status; grpclib's own codec for it would need one more package."""

    def encode(self, status: Status, message: str | None, details: Any) -> bytes:
        encoded = api_pb2.RPCStatus(code=status.value, message=message or "")
        for detail in details or []:
            encoded.details.add().Pack(detail)
        return encoded.SerializeToString()

    def decode(self, status: Status, message: str | None, data: bytes) -> None:
        return None
