"""A service of strings with every kind of method, served by our HTTP/2 or by grpclib's: for stories about the protocol alone.

    async with toy("ours") as (port, service): …        "grpclib" is the reference
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.wrappers_pb2 import StringValue
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.server import Server

from phalanx.api.http2 import Connection
from tests.harness.control_plane import LOCAL


class Toy:
    """`waiting` and `cancelled` count the calls of Wait."""

    def __init__(self) -> None:
        self.waiting = 0
        self.cancelled = 0
        self.open = asyncio.Event()

    async def echo(self, stream: Any) -> None:
        """The text back; "fail 5 sentence" is a status, "bug" a bug, "header NAME" what came as that header."""
        text = (await stream.recv_message()).value
        if text.startswith("fail "):
            raise GRPCError(Status(int(text.split(" ", 2)[1])), text.split(" ", 2)[2])
        if text == "bug":
            raise ZeroDivisionError("a bug")
        if text.startswith("header "):
            text = str(stream.metadata.get(text.removeprefix("header ")))
        await stream.send_message(StringValue(value=text))

    async def count(self, stream: Any) -> None:
        """ "N text": so many times the text; "N text!" fails after them."""
        times, text = (await stream.recv_message()).value.split(" ", 1)
        for _ in range(int(times)):
            await stream.send_message(StringValue(value=text))
        if text.endswith("!"):
            raise GRPCError(Status.ABORTED, text)

    async def gather(self, stream: Any) -> None:
        texts = []
        while (message := await stream.recv_message()) is not None:
            texts.append(message.value)
        await stream.send_message(StringValue(value=",".join(texts)))

    async def chat(self, stream: Any) -> None:
        while (message := await stream.recv_message()) is not None:
            await stream.send_message(StringValue(value=message.value.upper()))

    async def wait(self, stream: Any) -> None:
        await stream.recv_message()
        self.waiting += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        await stream.send_message(StringValue(value="open"))

    def __mapping__(self) -> dict[str, Handler]:
        kinds = {
            "Echo": (self.echo, Cardinality.UNARY_UNARY), "Count": (self.count, Cardinality.UNARY_STREAM),
            "Gather": (self.gather, Cardinality.STREAM_UNARY), "Chat": (self.chat, Cardinality.STREAM_STREAM),
            "Wait": (self.wait, Cardinality.UNARY_UNARY),
        }  # fmt: skip
        return {f"/toy.Toy/{name}": Handler(method, kind, StringValue, StringValue) for name, (method, kind) in kinds.items()}


async def reached(condition: Callable[[], bool]) -> None:
    """As waiting.until, in the loop itself."""
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not come true")


@asynccontextmanager
async def toy(kind: str, connections: list[Connection] | None = None) -> AsyncIterator[tuple[int, Toy]]:
    """Serve it on a free port; our connections are added to `connections`."""
    service = Toy()
    if kind == "grpclib":
        reference = Server([service])
        await reference.start(LOCAL, 0)
        try:
            yield reference._server.sockets[0].getsockname()[1], service    # type: ignore[union-attr]
        finally:
            reference.close()
            await reference.wait_closed()
        return
    made = [] if connections is None else connections

    def connection() -> Connection:
        made.append(Connection(service.__mapping__()))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(connection, LOCAL, 0)
    try:
        yield server.sockets[0].getsockname()[1], service
    finally:
        server.close()
        for one in made:
            one.close()
            one._transport.abort()
