"""One connection of the agent to its server: gRPC over the tasks socket, after a preamble line that says who comes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol

from phalanx.protocol import agent_pb2
from phalanx.protocol.agent_grpc import AgentsStub

PREAMBLE = b"PHALANX/1 agent\n"


class ServerAway(Exception):
    """The connection broke, or there is none. The server comes back."""


class TasksChannel(Channel):
    """A grpclib channel whose connection says the preamble first; the front tells agents, shims and clients apart by it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path=str(path))
        self._tasks_socket = str(path)

    async def _create_connection(self) -> H2Protocol:
        loop = asyncio.get_running_loop()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, self._tasks_socket)
            await loop.sock_sendall(connection, PREAMBLE)
            _, protocol = await loop.create_unix_connection(self._protocol_factory, sock=connection)
        except BaseException:
            connection.close()
            raise
        return protocol


class Session:
    """Messages out through a queue, in as an iterator. Ends when either side breaks."""

    def __init__(self, channel: TasksChannel) -> None:
        self.stub = AgentsStub(channel)
        self._outgoing: asyncio.Queue[agent_pb2.FromAgent] = asyncio.Queue()

    def send(self, message: agent_pb2.FromAgent) -> None:
        self._outgoing.put_nowait(message)

    async def messages(self) -> AsyncIterator[agent_pb2.ToAgent]:
        async with self.stub.Session.open() as stream:
            try:
                await stream.send_request()
            except AttributeError as error:     # grpclib 0.4.8, where the connection broke before its first stream
                raise ConnectionResetError("the connection broke as it was made") from error
            sender = asyncio.create_task(self._send_all(stream))
            try:
                while (message := await stream.recv_message()) is not None:
                    yield message
            finally:
                sender.cancel()

    async def fetch_layer(self, layer_id: str) -> AsyncIterator[agent_pb2.LayerFile]:
        """Raises ServerAway when the connection breaks on the way, GRPCError when the server refuses."""
        try:
            async with self.stub.GetLayer.open() as stream:
                await stream.send_message(agent_pb2.GetLayerRequest(layer_id=layer_id), end=True)
                async for part in stream:
                    yield part
        except (OSError, StreamTerminatedError, ProtocolError) as error:
            raise ServerAway(str(error)) from error
        except GRPCError as error:
            if error.status in (Status.UNAVAILABLE, Status.CANCELLED):
                raise ServerAway(str(error)) from error
            raise

    async def _send_all(self, stream) -> None:  # type: ignore[no-untyped-def]
        while True:
            await stream.send_message(await self._outgoing.get())
