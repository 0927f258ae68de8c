"""Reads of one stream of one rank become whole lines, however the reads were cut.

A line ends at a newline, or at a carriage return that no newline follows (progress bars). Bytes are text only once a line is
whole, so a character that was split across reads stays whole, and a byte that is not UTF-8 costs one replacement character.
"""

from __future__ import annotations

import re

PIECE_BYTES = 1 << 20       # a longer line comes in pieces of at most this, with nothing added between them

_END = re.compile(rb"\n|\r\n|\r(?=[^\n])")


class Lines:
    """`rest` is what has no end yet."""

    def __init__(self, rest: bytes = b"") -> None:
        self.rest = rest

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete, each with its end. The same lines for any cut of the same bytes."""
        text = self.rest + data
        # What is left over holds no end but perhaps a last "\r", so looking starts there and a long line is not looked at again and again.
        look = max(len(self.rest) - 1, 0)
        start = 0
        lines: list[bytes] = []
        for found in _END.finditer(text, look):
            self._pieces(text, start, found.end(), lines)
            start = found.end()
        start = self._long(text, start, len(text), lines)
        self.rest = text[start:]
        return lines

    def flush(self) -> bytes:
        """What has no end yet, without the beginning of a character whose other bytes may still come."""
        whole = len(self.rest) - unfinished(self.rest)
        shown, self.rest = self.rest[:whole], self.rest[whole:]
        return shown

    def finish(self) -> bytes:
        """All that is left: nothing more comes."""
        shown, self.rest = self.rest, b""
        return shown

    def _pieces(self, text: bytes, start: int, end: int, lines: list[bytes]) -> None:
        start = self._long(text, start, end, lines)
        lines.append(text[start:end])

    def _long(self, text: bytes, start: int, end: int, lines: list[bytes]) -> int:
        """Take full pieces off the front while more than one piece's worth is there."""
        while end - start > PIECE_BYTES:
            cut = start + PIECE_BYTES - unfinished(text[start : start + PIECE_BYTES])
            lines.append(text[start:cut])
            start = cut
        return start


def unfinished(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character that is not whole: 0 to 3."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if not 0x80 <= byte < 0xC0:     # not a following byte: the character begins here, if it is longer than one
            length = 4 if 0xF0 <= byte < 0xF8 else 3 if 0xE0 <= byte < 0xF0 else 2 if 0xC0 <= byte < 0xE0 else 1
            return back if length > back else 0
    return 0
