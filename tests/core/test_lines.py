"""Bytes of one stream become lines: the same ones, however they were cut on their way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core import lines as module
from phalanx.core.lines import PIECE_BYTES, Lines, unfinished

WORDS = [b"\n", b"\r", b"\r\n", b"a", b"word ", "é".encode(), "🚀".encode(), b"\x80", b"\xf0\x9f", b"\xff", b"x" * 7]
OUTPUT = st.lists(st.sampled_from(WORDS), max_size=40).map(b"".join)


def lines_of(pieces: list[bytes]) -> list[bytes]:
    lines = Lines()
    whole = [line for piece in pieces for line in lines.feed(piece)]
    rest = lines.finish()
    return [*whole, rest] if rest else whole


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


@given(OUTPUT, st.lists(st.integers(0, 400), max_size=12))
def test_any_cut_of_the_bytes_gives_the_same_lines(data: bytes, places: list[int]) -> None:
    assert lines_of(cut(data, places)) == lines_of([data])


@given(OUTPUT, st.lists(st.integers(0, 400), max_size=12), st.integers(4, 9))
def test_any_cut_of_long_lines_gives_the_same_pieces(data: bytes, places: list[int], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", limit)
        pieces = lines_of([data])
        assert lines_of(cut(data, places)) == pieces
        assert all(len(piece) <= limit for piece in pieces)


@given(OUTPUT, st.lists(st.integers(0, 400), max_size=12))
def test_no_byte_is_lost_or_added_even_when_parts_are_shown_early(data: bytes, places: list[int]) -> None:
    lines = Lines()
    shown = b""
    for piece in cut(data, places):
        shown += b"".join(lines.feed(piece)) + lines.flush()
    assert shown + lines.finish() == data


@given(st.text(st.sampled_from("aé€🚀\n\r")), st.lists(st.integers(0, 400), max_size=12))
def test_text_is_never_cut_inside_a_character(text: str, places: list[int]) -> None:
    lines = Lines()
    shown = []
    for piece in cut(text.encode(), places):
        shown += [*lines.feed(piece), lines.flush()]
    assert "".join(part.decode("utf-8", "strict") for part in [*shown, lines.finish()]) == text


def test_case_107_one_replacement_for_the_bad_byte_and_the_emoji_whole() -> None:
    rocket = "🚀".encode()
    lines = lines_of([b"bad \x80 byte\n", rocket[:1], rocket[1:3], rocket[3:] + b" launched\n"])
    assert [line.decode("utf-8", "replace") for line in lines] == ["bad \N{REPLACEMENT CHARACTER} byte\n", "🚀 launched\n"]


def test_ten_megabytes_without_a_newline_come_in_pieces_that_add_up() -> None:
    data = "é".encode() * (5 << 20) + b"\n"
    pieces = lines_of([data[at : at + 65_521] for at in range(0, len(data), 65_521)])
    assert b"".join(pieces) == data
    assert max(len(piece) for piece in pieces) <= PIECE_BYTES
    assert all(piece.decode("utf-8", "strict") for piece in pieces)
    assert not any(piece.endswith(b"\n") for piece in pieces[:-1])


def test_a_progress_bar_is_shown_step_by_step() -> None:
    assert lines_of([b"\r 10%", b"\r 20%", b"\r100%\n"]) == [b"\r", b" 10%\r", b" 20%\r", b"100%\n"]


def test_a_newline_that_follows_a_carriage_return_in_the_next_read_belongs_to_it() -> None:
    assert lines_of([b"one\r", b"\ntwo\r", b"three"]) == [b"one\r\n", b"two\r", b"three"]


@pytest.mark.parametrize(
    ("data", "left"), [(b"a", 0), ("é".encode()[:1], 1), ("🚀".encode()[:3], 3), ("🚀".encode(), 0), (b"\x80\x80", 0), (b"", 0)]
)
def test_how_much_of_a_character_is_there(data: bytes, left: int) -> None:
    assert unfinished(data) == left
