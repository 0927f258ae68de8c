"""Clients that mean harm, or are broken: each costs its own connection at most, and the server's memory little."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.http2 import MOST_UNSENT, PREFACE
from phalanx.api.http2_frames import DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame
from phalanx.api.http2_rules import CALM, LONGEST_MESSAGE, MOST_BUFFERED, MOST_STREAMS, REFUSED_STREAM
from tests.harness.raw_http2 import Raw, codes, message, settled, story

RESET = struct.pack(">I", 8)


@story
async def test_requests_reset_as_fast_as_they_come_do_not_pile_up() -> None:
    raw = Raw()
    flood = b"".join(raw.ask(n, "Wait", grpc_timeout="99999999H") + frame(RST_STREAM, 0, n, RESET) for n in range(1, 20_001, 2))
    raw.say(flood)
    assert codes(raw.frames()) == {0: CALM}
    await raw.lost()


@story
async def test_a_client_may_reset_all_its_requests_again_and_again() -> None:
    raw = Raw()
    for first in range(1, 40_000, 2 * MOST_STREAMS):
        streams = range(first, first + 2 * MOST_STREAMS, 2)
        raw.say(*(raw.ask(n, "Wait", grpc_timeout="99999999H") for n in streams))
        await settled()
        assert raw.toy.waiting == MOST_STREAMS
        raw.say(*(frame(RST_STREAM, 0, n, RESET) for n in streams))
        await settled()
        assert raw.toy.waiting == 0 and not codes(raw.frames())
    await raw.lost()


@story
async def test_more_streams_than_offered_are_refused_one_by_one() -> None:
    raw = Raw()
    raw.say(*(raw.ask(n, "Wait") for n in range(1, 2 * MOST_STREAMS + 21, 2)))
    await settled()
    assert list(codes(raw.frames()).values()) == [REFUSED_STREAM] * 10
    assert raw.toy.waiting == MOST_STREAMS
    await raw.lost()


@story
async def test_who_asks_and_never_reads_is_not_read_any_more_until_he_does() -> None:
    for asks in (frame(PING, 0, 0, b"12345678"), frame(SETTINGS, 0, 0, b""), frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01")):
        raw = Raw(reads=False)
        raw.say(raw.ask(1, "Wait"))
        for _ in range(60):
            if not raw.wire.is_paused:
                raw.say(asks * 10_000)
                await settled()
        assert raw.wire.unread < 2 * MOST_UNSENT
        assert raw.wire.is_paused == (asks[3] != WINDOW_UPDATE)     # which asks for nothing
        raw.wire.read_all()
        assert not raw.wire.is_paused
        await raw.lost()


@story
async def test_answers_wait_for_a_client_that_reads_slowly() -> None:
    raw = Raw(reads=False)
    raw.say(frame(WINDOW_UPDATE, 0, 0, b"\x40\0\0\0"), frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**30)))
    raw.say(*(raw.ask(n, text="x" * 10_000) for n in range(1, 1001, 2)))
    raw.say(*(raw.ask(n, "Count", f"1000 {'y' * 10_000}") for n in range(1001, 1201, 2)))
    for _ in range(3):
        await settled()
        assert raw.wire.unread < 500_000        # of a gigabyte
        raw.wire.unread = 0
        raw.connection.resume_writing()         # wakes all of them at once
    await raw.lost()


@story
async def test_frames_of_nothing_cost_no_memory() -> None:
    raw = Raw()
    raw.say(raw.headers(1, "Gather"))
    for _ in range(20):
        raw.say(frame(DATA, 0, 1, b"") * 5_000, frame(77, 255, 0x7FFFFFFF, b"unknown") * 1000)
        await settled()
    assert not raw.connection.buffered and not raw.connection._buffer
    raw.say(frame(DATA, END_STREAM, 1, message("a")))
    assert message("a") in (await raw.answer(1))[1]
    await raw.lost()


@story
async def test_a_length_of_four_gigabytes_is_refused_at_once() -> None:
    raw = Raw()
    raw.say(raw.headers(1), frame(DATA, 0, 1, b"\0\xff\xff\xff\xff"))
    headers, _ = await raw.answer(1)
    assert headers["grpc-status"] == "8" and f"4294967295 bytes is too long: {LONGEST_MESSAGE}" in headers["grpc-message"]
    raw.say(frame(DATA, 0, 1, b"x" * 1000), raw.ask(3))
    assert (await raw.answer(3))[0]["grpc-status"] == "0"
    await raw.lost()


@story
async def test_large_messages_of_one_connection_share_a_limit() -> None:
    raw = Raw()
    streams = range(1, 13, 2)       # six, of just under 128 MiB each
    for stream in streams:
        raw.say(raw.headers(stream), frame(DATA, 0, stream, b"\0" + (LONGEST_MESSAGE - 1).to_bytes(4, "big")))
    part = b"\0" * 16_384
    for _ in range(LONGEST_MESSAGE // len(part) - 1):
        raw.say(*(frame(DATA, 0, stream, part) for stream in streams))
        await settled()
        assert raw.connection.buffered <= MOST_BUFFERED + len(part) * len(streams)
    heard = raw.frames()
    assert not any(codes(heard).values())
    assert 0 < len(raw.connection.requests) < len(streams)      # some were told to come again
    await raw.lost()


@story
async def test_headers_that_grow_when_they_are_decompressed_end_the_connection() -> None:
    raw = Raw()
    big = b"\x40\x01x\x7f\x81\x1e" + b"v" * 4000        # into the table, once
    raw.say(frame(HEADERS, END_HEADERS, 1, big + b"\xbe" * 10_000))
    assert codes(raw.frames()) == {0: 9}
    await raw.lost()


@story
async def test_numbers_without_end_in_headers_end_the_connection() -> None:
    raw = Raw()
    raw.say(frame(HEADERS, END_HEADERS, 1, b"\xff" + b"\x80" * 16_000))
    assert codes(raw.frames()) == {0: 9}
    await raw.lost()


# ------------------------------------------------------------ any bytes


def session(raw: Raw) -> list[bytes]:
    """Frames of a client that does everything."""
    return [
        PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 20)), frame(SETTINGS, 1, 0, b""), raw.headers(1, x_key="value"),
        frame(DATA, END_STREAM, 1, message("hello")), frame(PING, 0, 0, b"12345678"), raw.ask(3, "Wait", grpc_timeout="1000S"),
        raw.ask(5, "Count", "5 text!"), frame(WINDOW_UPDATE, 0, 5, b"\0\0\0\x09"), raw.headers(7, "Chat"), frame(DATA, 0, 7, message("a")),
        frame(DATA, 8, 7, b"\x03" + message("b") + b"\0\0\0"), frame(RST_STREAM, 0, 3, RESET), frame(WINDOW_UPDATE, 0, 0, b"\0\0\xff\xff"),
        frame(HEADERS, 0, 9, raw.ask(9)[9:20]), frame(9, 4, 9, b""), frame(DATA, END_STREAM, 7, b""), frame(7, 0, 0, b"\0" * 8),
    ]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_session_with_any_damage_ends_without_a_trace(data: st.DataObject) -> None:
    @story
    async def with_damage() -> None:
        raw = Raw(preface=False, reads=data.draw(st.booleans()))
        parts = session(raw)
        for _ in range(data.draw(st.integers(0, 4))):
            at = data.draw(st.integers(0, len(parts) - 1))
            kind = data.draw(st.sampled_from(["drop", "twice", "swap", "byte", "cut", "insert"]))
            if kind == "drop":
                parts[at] = b""
            elif kind == "twice":
                parts.insert(at, parts[at])
            elif kind == "swap":
                other = data.draw(st.integers(0, len(parts) - 1))
                parts[at], parts[other] = parts[other], parts[at]
            elif kind == "insert":
                parts.insert(at, any_frame(data))
            elif parts[at]:
                where = data.draw(st.integers(0, len(parts[at]) - 1))
                new = data.draw(st.binary(min_size=1, max_size=1)) if kind == "byte" else b""
                parts[at] = parts[at][:where] + new + (parts[at][where + 1 :] if kind == "byte" else b"")
        stream = b"".join(parts)
        size = data.draw(st.sampled_from([1, 7, 100, 10_000]))
        for at in range(0, len(stream), size):
            raw.say(stream[at : at + size])
            if at % 3 == 0:
                await settled()
        await settled()
        raw.frames()
        await raw.lost()

    with_damage()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=5), st.booleans())
def test_any_bytes_end_without_a_trace(parts: list[bytes], with_preface: bool) -> None:
    @story
    async def with_bytes() -> None:
        raw = Raw(preface=with_preface)
        raw.say(*parts)
        await settled()
        raw.frames()
        await raw.lost()

    with_bytes()


def any_frame(data: st.DataObject) -> bytes:
    kind, flags = data.draw(st.integers(0, 10)), data.draw(st.sampled_from([0, 1, 4, 5, 8, 32, 45, 255]))
    return frame(kind, flags, data.draw(st.integers(0, 12)), data.draw(st.binary(max_size=40)))
