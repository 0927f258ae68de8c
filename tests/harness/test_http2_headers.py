"""The server reads header blocks by itself: whatever comes, the outcome is that of hpack's own decoder, block after block."""

from __future__ import annotations

from hpack import Decoder, Encoder, HPACKError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phalanx.api.http2_headers import HeaderDecoder

MOST = 2_000
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
FIELDS = st.lists(st.tuples(st.sampled_from([":path", "te", "x-key", "a-name-of-its-own"]) | TEXT, TEXT), max_size=8)


@st.composite
def sessions(draw: st.DrawFn) -> list[bytes]:
    """Blocks of one client, which may change the size of the table; some are damaged, some are no blocks at all."""
    encoder, blocks = Encoder(), []
    for fields in draw(st.lists(FIELDS, min_size=1, max_size=6)):
        if draw(st.booleans()):
            encoder.header_table_size = draw(st.sampled_from([0, 60, 200, 4096]))
        block = bytearray(encoder.encode(fields, huffman=draw(st.booleans())))
        if block and draw(st.integers(0, 3)) == 0:
            block[draw(st.integers(0, len(block) - 1))] = draw(st.integers(0, 255))
        blocks.append(bytes(block[: draw(st.integers(0, len(block)))] if draw(st.integers(0, 5)) == 0 else block))
    return [*blocks, draw(st.binary(max_size=30))]


@settings(max_examples=300, deadline=None)
@given(sessions())
@example([b"\x40", b""])
@example([b"\xff\xff\xff\xff\xff\xff\xff\x01"])
@example([b"\xff\x80\x80\x80\x00", b"\xff\x80\x80\x80\x80\x00"])
@example([b"\x3f\xe1\x1f\x82", b"\x3f\xe2\x1f\x82"])
@example([b"\x82\x20"])
@example([b"\x80"])
@example([b"\x00\x01\xff\x00"])
@example([b"\x00\x01a\x7f\xe9\x0e" + b"x" * 2_001])
def test_a_session_reads_as_hpack_reads_it(blocks: list[bytes]) -> None:
    ours, theirs = HeaderDecoder(MOST), Decoder(MOST)
    for block in blocks:
        try:
            expected = [tuple(field) for field in theirs.decode(block)]
        except HPACKError:
            expected = None
        try:
            found = ours.decode(block)
        except HPACKError:
            found = None
        assert found == expected
        if expected is None:
            return
