"""The same calls of a grpclib client, to our server and to grpclib's own: nobody can tell which is which."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpclib.client import Channel, StreamStreamMethod, StreamUnaryMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from tests.harness.control_plane import LOCAL
from tests.harness.toy_service import reached, toy

Call = Callable[[Channel], Awaitable[Any]]


def unary(text: str, name: str = "Echo", timeout: float | None = None, **metadata: str) -> Call:
    async def call(channel: Channel) -> str:
        said = {name.replace("_", "-"): value for name, value in metadata.items()}
        method = UnaryUnaryMethod(channel, f"/toy.Toy/{name}", StringValue, StringValue)
        return (await method(StringValue(value=text), metadata=said, timeout=timeout)).value

    return call


def counted(text: str) -> Call:
    async def call(channel: Channel) -> list[str]:
        heard: list[str] = []
        try:
            async with UnaryStreamMethod(channel, "/toy.Toy/Count", StringValue, StringValue).open() as stream:
                await stream.send_message(StringValue(value=text), end=True)
                async for message in stream:
                    heard.append(message.value)
        except GRPCError as error:
            heard.append(repr(error))
        return heard

    return call


def gathered(*texts: str) -> Call:
    async def call(channel: Channel) -> str:
        return (await StreamUnaryMethod(channel, "/toy.Toy/Gather", StringValue, StringValue)([StringValue(value=t) for t in texts])).value

    return call


def chatted(*texts: str) -> Call:
    async def call(channel: Channel) -> list[str]:
        heard = []
        async with StreamStreamMethod(channel, "/toy.Toy/Chat", StringValue, StringValue).open() as stream:
            await stream.send_request()
            for text in texts:
                await stream.send_message(StringValue(value=text))
                heard.append((await stream.recv_message()).value)   # type: ignore[union-attr]
            await stream.end()
            assert await stream.recv_message() is None
        return heard

    return call


def at_once(*calls: Call) -> Call:
    async def call(channel: Channel) -> Any:
        return [repr(outcome) for outcome in await asyncio.gather(*(one(channel) for one in calls), return_exceptions=True)]

    return call


SENTENCE = "déjà vu: 100 % of “net-2”\r\n\tgone 🚀 \x00\x7f %41 \\ "


@pytest.mark.parametrize(
    "call",
    [
        unary("hello"), unary(""), unary("ü" * 9), unary("x" * 200_000), unary("y" * 5_000_000), unary("z" * 16_373), unary("z" * 16_374),
        *(unary(f"fail {status} {SENTENCE}") for status in range(1, 17)),
        unary("fail 5 "), unary("fail 3 " + "é" * 1500), unary("bug"),
        unary("never", name="Wait", timeout=0.05),
        unary("header x-word", x_word="a, b; c=%20"), unary("header x-word"), unary("header x-long", x_long="v" * 20_000),
        counted("0 a"), counted("3 b"), counted("1000 "), counted("40 " + "c" * 100_000), counted("2 d!"), counted("0 e!"),
        gathered("a"), gathered("a", "", "c"), gathered(*("x" * 70_000 for _ in range(30))), gathered(),
        chatted(), chatted("a", "", "b" * 100_000), chatted(*"many little words" * 10),
        at_once(*(unary(f"text {n}") for n in range(300)), counted("50 f"), chatted("g"), unary("fail 9 no"), unary("w", "Wait", 0.1)),
    ],
)  # fmt: skip
def test_a_call_has_the_same_outcome_as_with_grpclib(call: Call) -> None:
    assert asyncio.run(outcome("ours", call)) == asyncio.run(outcome("grpclib", call))


def test_more_calls_at_once_than_streams_may_be_open_all_end() -> None:
    async def story() -> list[str]:
        async with toy("ours") as (port, service):
            channel = Channel(LOCAL, port)
            calls = [asyncio.ensure_future(unary("w", "Wait")(channel)) for _ in range(1500)]
            await reached(lambda: service.waiting == 1000)
            service.open.set()
            try:
                return [str(one) for one in await asyncio.gather(*calls)]
            finally:
                channel.close()

    assert asyncio.run(story()) == ["open"] * 1500


async def outcome(kind: str, call: Call) -> str:
    """What the caller sees: what is returned, or the error in full."""
    async with toy(kind) as (port, _):
        channel = Channel(LOCAL, port)
        try:
            return repr(await asyncio.wait_for(call(channel), 30))
        except GRPCError as error:
            if error.status is Status.DEADLINE_EXCEEDED:
                return "too late"       # the server said so first
            return repr((error.status, error.message, error.details))
        except TimeoutError:
            return "too late"
        except Exception as error:
            return repr(error)
        finally:
            channel.close()
