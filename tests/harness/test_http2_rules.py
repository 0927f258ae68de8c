"""What breaks the rules of HTTP/2 (numbers: RFC 9113's sections): the stream, or the connection, ends with the right code."""

from __future__ import annotations

import struct

import pytest

from phalanx.api.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)  # fmt: skip
from phalanx.api.http2_rules import WINDOW
from tests.harness.raw_http2 import Raw, codes, message, settled, story

PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION, CALM = 1, 3, 5, 6, 9, 11
WORD = struct.Struct(">I").pack


def setting(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (frame(DATA, 0, 0, b"x"), PROTOCOL),                                 # 6.1
        (frame(DATA, 0, 2, b"x"), PROTOCOL),                                 # 5.1.1: even streams are the server's
        (frame(DATA, PADDED, 1, b""), SIZE),
        (frame(DATA, PADDED, 1, b"\x05abc"), PROTOCOL),
        (frame(HEADERS, END_HEADERS, 0, b"\x83"), PROTOCOL),                 # 6.2
        (frame(HEADERS, END_HEADERS, 2, b"\x83"), PROTOCOL),
        (frame(HEADERS, END_HEADERS | HAS_PRIORITY, 3, b"\0\0\0\0"), PROTOCOL),
        (frame(HEADERS, END_HEADERS | HAS_PRIORITY | PADDED, 3, b"\4\0\0\0\0\0xyz"), PROTOCOL),
        (frame(HEADERS, END_HEADERS, 3, b"\xbf\xff\xff"), COMPRESSION),
        (frame(HEADERS, 0, 3, b"\x83") + frame(PING, 0, 0, b"12345678"), PROTOCOL),        # 6.10: a block is not interrupted
        (frame(HEADERS, 0, 3, b"\x83") + frame(CONTINUATION, 0, 5, b""), PROTOCOL),
        (frame(HEADERS, 0, 3, b"") + frame(CONTINUATION, 0, 3, b"") * 1000, CALM),
        (frame(HEADERS, 0, 3, b"") + frame(CONTINUATION, 0, 3, b"\0" * 16_384) * 5, CALM),
        (frame(PRIORITY, 0, 0, b"12345"), PROTOCOL),                         # 6.3
        (frame(PRIORITY, 0, 3, b"1234"), SIZE),
        (frame(RST_STREAM, 0, 0, WORD(8)), PROTOCOL),                        # 6.4
        (frame(RST_STREAM, 0, 9, WORD(8)), PROTOCOL),                        # idle
        (frame(RST_STREAM, 0, 1, b"\0\0\0"), SIZE),
        (frame(SETTINGS, 0, 1, b""), PROTOCOL),                              # 6.5
        (frame(SETTINGS, 0, 0, b"12345"), SIZE),
        (frame(SETTINGS, ACK, 0, b"123456"), SIZE),
        (setting((2, 2)), PROTOCOL),
        (setting((4, 2**31)), FLOW),
        (setting((5, 16_383)), PROTOCOL),
        (setting((5, 2**24)), PROTOCOL),
        (frame(PUSH_PROMISE, END_HEADERS, 1, WORD(2) + b"\x83"), PROTOCOL),  # 8.4
        (frame(PING, 0, 1, b"12345678"), PROTOCOL),                          # 6.7
        (frame(PING, 0, 0, b"1234567"), SIZE),
        (frame(GOAWAY, 0, 1, WORD(0) * 2), PROTOCOL),                        # 6.8
        (frame(GOAWAY, 0, 0, WORD(0)), SIZE),
        (frame(WINDOW_UPDATE, 0, 0, WORD(0)), PROTOCOL),                     # 6.9
        (frame(WINDOW_UPDATE, 0, 1, WORD(0)), PROTOCOL),
        (frame(WINDOW_UPDATE, 0, 9, WORD(1)), PROTOCOL),
        (frame(WINDOW_UPDATE, 0, 0, b"\0\0\0"), SIZE),
        (frame(WINDOW_UPDATE, 0, 0, WORD(2**31 - 1)), FLOW),
    ],
)  # fmt: skip
@story
async def test_a_connection_that_breaks_a_rule_ends_with_its_code_and_with_its_requests(said: bytes, code: int) -> None:
    raw = Raw()
    raw.say(raw.ask(1, "Wait"))
    await settled()
    assert raw.toy.waiting == 1
    raw.say(said)
    assert codes(raw.frames()) == {0: code}
    assert raw.wire.is_closed
    await settled()
    assert raw.toy.cancelled == 1
    await raw.lost()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (frame(DATA, 0, 1, b"more"), CLOSED),                                # 5.1: after the end
        (frame(DATA, END_STREAM, 1, b""), CLOSED),
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, b""), CLOSED),
        (frame(WINDOW_UPDATE, 0, 1, WORD(2**31 - 1)), FLOW),
    ],
)  # fmt: skip
@story
async def test_a_stream_that_breaks_a_rule_is_reset_and_the_connection_goes_on(said: bytes, code: int) -> None:
    raw = Raw()
    raw.say(raw.ask(1, "Wait"))
    await settled()
    raw.say(said)
    await settled()
    assert codes(raw.frames()) == {1: code}
    assert raw.toy.cancelled == 1
    raw.say(raw.ask(3))
    assert (await raw.answer(3))[0]["grpc-status"] == "0"
    await raw.lost()


@pytest.mark.parametrize(
    "fields",
    [
        {":path": ""}, {":method": ""}, {":scheme": ""}, {":status": "200"}, {":unknown": "x"}, {"X-Upper": "x"}, {"connection": "close"},
        {"transfer-encoding": "chunked"}, {"te": "gzip"}, {"": "nameless"}, {"x-key": "with\0zero"}, {"x-key": "two\r\nlines"},
    ],
)  # fmt: skip
@story
async def test_malformed_headers_end_their_stream_only(fields: dict[str, str]) -> None:
    raw = Raw()
    good = {":method": "POST", ":scheme": "http", ":path": "/toy.Toy/Echo", "content-type": "application/grpc"}
    raw.say(raw.block(1, [(name, value) for name, value in (good | fields).items() if value]))
    raw.say(raw.block(3, [*good.items(), (":path", "/toy.Toy/Echo")]))      # twice, and after the others
    raw.say(frame(DATA, END_STREAM, 1, message("x")), raw.ask(5))
    headers, _ = await raw.answer(5)
    assert headers["grpc-status"] == "0"
    await raw.lost()


@story
async def test_malformed_headers_are_told_so() -> None:
    raw = Raw()
    raw.say(raw.block(1, [(":method", "POST"), (":scheme", "http"), ("content-type", "application/grpc")]))
    raw.say(raw.headers(3), raw.block(3, [("x-trailer", "that does not end the stream")]))
    raw.say(raw.ask(5, grpc_timeout="²S"), raw.ask(7, grpc_timeout="9" * 5000 + "H"), raw.ask(9, grpc_timeout="99999999H"))
    await settled()
    assert codes(raw.frames()) == {1: PROTOCOL, 3: PROTOCOL}
    await raw.lost()


@story
async def test_what_is_no_grpc_request_gets_a_status_of_http() -> None:
    raw = Raw()
    raw.say(raw.block(1, [(":method", "GET"), (":scheme", "http"), (":path", "/")], END_HEADERS | END_STREAM))
    assert (await raw.answer(1))[0][":status"] == "405"
    raw.say(raw.ask(3, content_type="text/plain"))
    assert (await raw.answer(3))[0][":status"] == "415"


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0\x02\xff\xff", b"\1\0\0\0\0", b"\0\xff\xff\xff\xff", b"\0\0\0\0\x09abc"])
@story
async def test_a_message_that_is_none_is_the_callers_fault(body: bytes) -> None:
    raw = Raw()
    raw.say(raw.headers(1), frame(DATA, END_STREAM, 1, body))
    assert (await raw.answer(1))[0]["grpc-status"] in ("1", "3", "8", "12")    # never unknown or internal: no bug of ours
    raw.say(raw.headers(3, "Gather"), frame(DATA, END_STREAM, 3, b""))
    assert (await raw.answer(3))[0]["grpc-status"] == "0"      # a stream of no messages is one
    await raw.lost()


@story
async def test_data_beyond_the_windows_is_an_error() -> None:
    part = frame(DATA, 0, 1, b"\0" * 16_384)
    raw = Raw()
    raw.say(raw.headers(1, "Wait"), frame(DATA, 0, 1, message("read, and nothing after it")))
    await settled()
    raw.say(part * (WINDOW // 16_384 - 1))
    assert raw.connection.buffered <= WINDOW and not codes(raw.frames())
    raw.say(part)
    assert codes(raw.frames()) == {0: FLOW}
    await raw.lost()


@story
async def test_what_is_sent_to_requests_that_are_over_gives_its_window_back() -> None:
    raw = Raw()
    raw.say(raw.headers(1, "Wait"))
    for stream in range(3, 203, 2):
        raw.say(raw.headers(stream, "Wait"), frame(DATA, 0, stream, b"\0" * 16_384), frame(RST_STREAM, 0, stream, WORD(8)))
        raw.say(*[frame(DATA, PADDED, stream, b"\x7f" + b"\0" * 16_000)] * 20)
        await settled()
    assert not codes(raw.frames())
    assert raw.connection._room + raw.connection._untold == WINDOW
    raw.say(raw.ask(203))
    assert (await raw.answer(203))[0]["grpc-status"] == "0"
    await raw.lost()


@story
async def test_a_window_of_nothing_holds_the_answer_until_it_opens_by_any_way() -> None:
    raw = Raw()
    raw.say(setting((4, 0)), raw.ask(1, text="a" * 100), raw.ask(3, text="b" * 100))
    assert (await raw.answer(1))[1] == b""
    raw.say(frame(WINDOW_UPDATE, 0, 3, WORD(50)))
    assert len((await raw.answer(3))[1]) == 50
    raw.say(setting((4, 10)))                                                  # opens both, by 10
    assert len((await raw.answer(1))[1]) == 10
    raw.say(setting((4, 0)))                                                   # 10 below nothing: 6.9.2
    raw.say(frame(WINDOW_UPDATE, 0, 1, WORD(10)))
    assert (await raw.answer(1))[1] == b""
    raw.say(setting((4, 1000)))
    headers, data = await raw.answer(1)
    assert headers["grpc-status"] == "0" and len(data) == len(message("a" * 100)) - 10
    await raw.lost()
