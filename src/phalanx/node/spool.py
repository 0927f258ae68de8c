"""A container's output on disk: append-only segments of records, deleted when the server has them.

A record is a header (stream, wall clock in ns, length) and its bytes; an offset counts bytes of the whole spool since its beginning,
headers too. A segment's file name is the offset of its first record. The shim writes, the agent reads the same files: so the
last lines of a container are safe even when its shim is killed. stdlib only.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

STDOUT, STDERR, SYSTEM = 1, 2, 3
HEADER = struct.Struct("<BQI")
SEGMENT_BYTES = 4 << 20


@dataclass(frozen=True)
class Record:
    offset: int
    stream: int
    time_ns: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + HEADER.size + len(self.data)


class SpoolWriter:
    """Appends records. A full disk, or more than `limit` bytes, costs the oldest segments, and a record says how many lines that was."""

    def __init__(self, folder: str, limit: int, segment: int = SEGMENT_BYTES) -> None:
        self.folder, self.limit, self.segment = folder, limit, segment
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.lost_lines = 0
        self.end = end_offset(folder)
        self._start = self.end
        self._file = -1

    def append(self, stream: int, time_ns: int, data: bytes) -> None:
        """Never raises for a full disk: what can't be kept is counted and told later."""
        if self.lost_lines and stream != SYSTEM:
            lost, self.lost_lines = self.lost_lines, 0
            self.append(SYSTEM, time_ns, f"{lost} lines lost: the log's disk is full\n".encode())
        record = HEADER.pack(stream, time_ns, len(data)) + data
        if self._file < 0 or self.end - self._start >= self.segment:
            self._next_segment()
        while self.end - self._oldest() > self.limit and self._drop_oldest():
            pass
        if self._write(record) or (self._drop_oldest() and self._write(record)):
            self.end += len(record)
            return
        self.lost_lines += data.count(b"\n") or 1

    def acknowledge(self, offset: int) -> None:
        """Delete the segments that lie wholly before `offset`."""
        starts = segments(self.folder)
        for start, after in zip(starts, starts[1:], strict=False):
            if after <= offset:
                os.unlink(_path(self.folder, start))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _next_segment(self) -> None:
        self.close()
        self._start = self.end
        try:
            self._file = os.open(_path(self.folder, self.end), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            self._file = -1

    def _write(self, record: bytes) -> bool:
        """Write the record whole, or leave the file as it was."""
        if self._file < 0:
            self._next_segment()
            if self._file < 0:
                return False
        size = self.end - self._start
        try:
            written = 0
            while written < len(record):
                written += os.write(self._file, record[written:])
            return True
        except OSError:
            os.ftruncate(self._file, size)
            return False

    def _oldest(self) -> int:
        starts = segments(self.folder)
        return starts[0] if starts else self.end

    def _drop_oldest(self) -> bool:
        starts = segments(self.folder)
        if not starts or starts[0] == self._start:
            return False
        path = _path(self.folder, starts[0])
        with open(path, "rb") as file:
            self.lost_lines += file.read().count(b"\n")
        os.unlink(path)
        return True


def read(folder: str, offset: int) -> Iterator[Record]:
    """Whole records from `offset` on, as far as they are written. A gap (dropped segments) is stepped over."""
    starts = segments(folder)
    for index, start in enumerate(starts):
        following = starts[index + 1] if index + 1 < len(starts) else None
        if following is not None and following <= offset:
            continue
        position = max(start, offset)
        try:
            file = open(_path(folder, start), "rb")  # noqa: SIM115 (closed below)
        except FileNotFoundError:       # dropped since we listed it
            continue
        with file:
            file.seek(position - start)
            while len(header := file.read(HEADER.size)) == HEADER.size:
                stream, time_ns, length = HEADER.unpack(header)
                data = file.read(length)
                if len(data) < length:
                    return
                record = Record(position, stream, time_ns, data)
                yield record
                position = record.end


def end_offset(folder: str) -> int:
    """The offset behind the last whole record."""
    starts = segments(folder)
    if not starts:
        return 0
    end = starts[-1]
    for record in read(folder, starts[-1]):
        end = record.end
    return end


def segments(folder: str) -> list[int]:
    """First offsets of the segments there are, ascending."""
    try:
        return sorted(int(name[:-4]) for name in os.listdir(folder) if name.endswith(".log"))
    except FileNotFoundError:
        return []


def _path(folder: str, start: int) -> str:
    return os.path.join(folder, f"{start:016d}.log")
