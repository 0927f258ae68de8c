"""Log segments on disk: append-only files of frames, written where the index says, synced before anything is acknowledged.

The index (model/logs.py, rows of the database) says how far a segment is good. Bytes behind that were never acknowledged: a
server that was killed while it wrote cuts them, and the shim sends them again.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

LINE, TAIL = 1, 2
"""TAIL: what a stream has written behind its last line. Kept so that nothing acknowledged is lost; shown once it is a line."""

_HEAD = struct.Struct("<II")        # length of the rest, its crc32
_REST = struct.Struct("<BBQQH")     # kind, stream, seq, time in ns, length of the ids


@dataclass(frozen=True)
class Frame:
    """`ids`: what a line knows beyond its rank, as the server's log writes it."""

    kind: int
    stream: int
    seq: int
    time_ns: int
    data: bytes
    ids: tuple[str, ...] = ()


def encode(frame: Frame) -> bytes:
    ids = "\0".join(frame.ids).encode()
    rest = _REST.pack(frame.kind, frame.stream, frame.seq, frame.time_ns, len(ids)) + ids + frame.data
    return _HEAD.pack(len(rest), zlib.crc32(rest)) + rest


def decode(data: bytes) -> Iterator[Frame]:
    """Whole frames from the front; ends silently at one that is torn or damaged."""
    for frame, _ in frames_with_ends(data):
        yield frame


def whole(data: bytes) -> int:
    """How many bytes from the front are whole frames."""
    end = 0
    for _, end in frames_with_ends(data):  # noqa: B007
        pass
    return end


def frames_with_ends(data: bytes) -> Iterator[tuple[Frame, int]]:
    """Whole frames, each with the place behind it."""
    at = 0
    while len(data) - at >= _HEAD.size:
        length, checksum = _HEAD.unpack_from(data, at)
        rest = data[at + _HEAD.size : at + _HEAD.size + length]
        if length < _REST.size or len(rest) < length or zlib.crc32(rest) != checksum:
            return
        kind, stream, seq, time_ns, ids_length = _REST.unpack_from(rest)
        ids = rest[_REST.size : _REST.size + ids_length].decode()
        at += _HEAD.size + length
        yield Frame(kind, stream, seq, time_ns, rest[_REST.size + ids_length :], tuple(ids.split("\0")) if ids else ()), at


class Segments:
    """Files below one folder, by names like `ap-…/7-0.3`. All of it may run in any thread; one writer at a time."""

    def __init__(self, folder: Path, sync: bool) -> None:
        self.folder = folder
        self._sync = sync

    def write(self, writes: Iterable[tuple[str, int, bytes]]) -> None:
        """(name, offset, bytes): all of them on disk when this returns, with one sync a file. Raises OSError; may be repeated as it is."""
        by_name: dict[str, list[tuple[int, bytes]]] = {}
        for name, offset, data in writes:
            by_name.setdefault(name, []).append((offset, data))
        for name, parts in by_name.items():
            self._write(name, parts)

    def read(self, name: str, start: int, end: int) -> bytes:
        """What is there of a byte range; nothing when the segment was dropped."""
        try:
            with open(self.folder / name, "rb") as file:
                file.seek(start)
                return file.read(end - start)
        except FileNotFoundError:
            return b""

    def size(self, name: str) -> int:
        try:
            return os.stat(self.folder / name).st_size
        except FileNotFoundError:
            return 0

    def names(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.glob("*/*")}

    def cut(self, name: str, end: int) -> None:
        """Forget what stands behind `end`."""
        os.truncate(self.folder / name, end)

    def drop(self, name: str) -> None:
        """Delete a segment, and its folder when it was the last one there."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):   # others are there
            path.parent.rmdir()

    def _write(self, name: str, parts: list[tuple[int, bytes]]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for offset, data in parts:
                written = 0
                while written < len(data):
                    written += os.pwrite(file, data[written:], offset + written)
            if self._sync:
                os.fdatasync(file)
        finally:
            os.close(file)
        if is_new and self._sync:
            _sync_folder(path.parent)
            _sync_folder(path.parent.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
