"""Header blocks as they come in (RFC 7541), with hpack's table and Huffman code.

hpack's own decoder takes 16 to 22 us a request, a good part of it for log lines that nobody reads; the same in one loop takes 4 to 8.
Its outcome must be hpack's for any block: tests/harness/test_http2_headers.py.
"""

from __future__ import annotations

from hpack import HPACKDecodingError, InvalidTableSizeError, OversizedHeaderListError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

LONGEST_NUMBER = 5      # bytes, as in hpack: more are a number that never ends
ENTRY = 32              # what a field counts beside its bytes (RFC 7541, 4.1)


class HeaderDecoder:
    """Of one connection: each block changes the table that the next is read with. Raises hpack's errors, after which it is of no use."""

    def __init__(self, most: int) -> None:
        self._table = HeaderTable()
        self._most = most       # the longest list of fields, counted as the table counts

    def decode(self, block: bytes) -> list[tuple[str, str]]:
        """Names and values in order."""
        table, fields, size, at, end = self._table, [], 0, 0, len(block)
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    index, at = _number(block, at, 0x7F)
                    name, value = table.get_by_index(index)
                elif first & 0xE0 == 0x20:
                    if fields:
                        raise HPACKDecodingError("a change of the table's size behind a field")
                    at = self._resize(block, at)
                    continue
                else:
                    index, at = _number(block, at, 0x3F if first & 0x40 else 0x0F)
                    name, at = (table.get_by_index(index)[0], at) if index else _string(block, at)
                    value, at = _string(block, at)
                    if first & 0x40:
                        table.add(name, value)
                size += ENTRY + len(name) + len(value)
                if size > self._most:
                    raise OversizedHeaderListError(f"more than {self._most} bytes of headers")
                fields.append((name.decode(), value.decode()))
        except IndexError:
            raise HPACKDecodingError("a header block that ends inside of a field") from None
        except UnicodeDecodeError:
            raise HPACKDecodingError("a header that is no text") from None
        return fields

    def _resize(self, block: bytes, at: int) -> int:
        size, at = _number(block, at, 0x1F)
        if size > HeaderTable.DEFAULT_SIZE:
            raise InvalidTableSizeError(f"a table of {size} bytes")
        self._table.maxsize = size
        return at


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """The number at `at`, and where what follows begins (RFC 7541, 5.1)."""
    number = block[at] & mask
    begin, at = at, at + 1
    if number < mask:
        return number, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 128:
            return number, at
        shift += 7
        if at - begin > LONGEST_NUMBER:
            raise HPACKDecodingError("a number that does not end")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    is_huffman = block[at] & 0x80
    length, at = _number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise HPACKDecodingError("a header block that ends inside of a string")
    return decode_huffman(block[at:end]) if is_huffman else block[at:end], end
