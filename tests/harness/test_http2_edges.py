"""Where HTTP/2 begins and ends: a connection's first bytes, the last answers before it is cut, sentences that no header can hold."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpclib.const import Status

from phalanx.api.http2 import PREFACE, Connection
from phalanx.api.http2_frames import LONGEST_MESSAGE, frame, trailers
from phalanx.api.listener import Listener, _FirstBytes
from tests.harness.raw_http2 import Raw, message, settled, story


class Http1(asyncio.Protocol):
    """Stands for blobs."""

    def __init__(self) -> None:
        self.heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data


class Socket:
    """A transport that hands its protocol what comes."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.protocol: Any = protocol
        protocol.connection_made(self)      # type: ignore[arg-type]

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes) -> None:
        pass

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("said", [b"PUT /blob HTTP/1.1\r\n", b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n", PREFACE + frame(4, 0, 0, b"")])
@story
async def test_a_connection_finds_its_protocol_however_its_first_bytes_are_cut(said: bytes) -> None:
    listener = Listener({}, {}, lambda task: Http1(), lambda *_: None)
    for cut in range(1, len(said)):
        transport = Socket(_FirstBytes(listener, preamble=False))
        transport.protocol.data_received(said[:cut])
        transport.protocol.data_received(said[cut:])
        if said.startswith(b"PRI"):
            assert isinstance(transport.protocol, Connection) and not transport.protocol._wants_preface
        else:
            assert transport.protocol.heard == said
    await settled()


@story
async def test_what_was_answered_in_the_turn_of_the_cut_still_goes_out() -> None:
    raw = Raw()
    raw.say(raw.headers(1, "Chat"), frame(0, 0, 1, message("a")))
    for _ in range(100):        # until the answer is written, but not yet handed to the transport
        await asyncio.sleep(0)
        if raw.connection._outgoing and raw.connection.requests[1]._began_answer:
            break
    raw.connection.close()
    assert message("A") in raw.wire.said
    await raw.lost()


def test_any_sentence_goes_into_a_trailer() -> None:
    assert b"a%3Fb" in trailers(Status.NOT_FOUND, "a\udcffb") or b"a?b" in trailers(Status.NOT_FOUND, "a\udcffb")
    for length in range(3990, 4010):
        block = trailers(Status.NOT_FOUND, "x" * (length % 7) + "é" * length)
        assert len(block) < LONGEST_MESSAGE + 50
        assert block[-3:].startswith(b"%") or block.endswith(b"x")
