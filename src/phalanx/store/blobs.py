"""Blobs: content-addressed files in a folder. A file is there whole or not at all, and never changes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import secrets
import time
from pathlib import Path
from typing import BinaryIO

from phalanx.model.blob import BlobError, Stored

_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOB_ID = re.compile(r"bl-[0-9a-f]{64}")
CHUNK = 2**20
PARTS_KEPT_S = 24 * 3600
RENEWED_S = 3600        # a file's time is renewed no more often


class Blobs:
    """`bl-<sha256>` is the id of a blob; files of mounts go by the bare hash. `durability` full: on disk when a call returns."""

    def __init__(self, folder: Path, durability: str = "full") -> None:
        self._folder = folder
        self._synced = durability == "full"
        self._drafts = folder / "drafts"
        self._drafts.mkdir(parents=True, exist_ok=True)

    def clean(self) -> None:
        """At start: drop what uploads left behind half-way."""
        for draft in self._drafts.glob("*.new"):
            draft.unlink(missing_ok=True)
        self.drop_parts(time.time())

    def drop_parts(self, now_s: float) -> None:
        """Parts of a multipart upload stay until it is completed, or a day old: then nobody completes it any more."""
        for part in self._drafts.glob("*.part*"):
            with contextlib.suppress(FileNotFoundError):    # completed meanwhile
                if part.stat().st_mtime < now_s - PARTS_KEPT_S:
                    part.unlink()

    def has(self, sha256: str) -> bool:
        return bool(_SHA256.fullmatch(sha256)) and self._path(sha256).exists()

    def asked(self, sha256: str) -> bool:
        """Is it here? Then it is not removed for a while: who is told so sends it not, and names it."""
        if not self.has(sha256):
            return False
        path = self._path(sha256)
        if time.time() - path.stat().st_mtime > RENEWED_S:
            os.utime(path)
        return True

    def older_than(self, time_s: float) -> set[str]:
        """The hashes whose files were last written, or asked about, before that time."""
        found = set()
        for folder in self._folder.iterdir():
            if len(folder.name) == 2:
                found |= {entry.name for entry in os.scandir(folder) if entry.stat().st_mtime < time_s and _SHA256.fullmatch(entry.name)}
        return found

    def remove(self, sha256: str, before_s: float) -> bool:
        """Remove it if it is still that old. Nothing names it."""
        path = self._path(sha256)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before_s:
                path.unlink()
                return True
        return False

    def path(self, sha256: str) -> Path:
        """Where the content lies; raises BlobError when it is not here."""
        if not self.has(sha256):
            raise BlobError(f"no content {sha256} here")
        return self._path(sha256)

    def read(self, blob_id: str) -> bytes:
        """A blob's bytes; raises BlobError when it is not here."""
        return self.path(sha256_of(blob_id)).read_bytes()

    def write(self, data: bytes) -> str:
        """Keep bytes, return their blob id."""
        return "bl-" + self.put(data).sha256

    def id_for(self, sha256_base64: str) -> str:
        """The id for content that its sender announces by its hash."""
        try:
            digest = base64.b64decode(sha256_base64, validate=True)
        except ValueError:
            digest = b""
        if len(digest) != 32:
            raise BlobError(f"content_sha256_base64 '{sha256_base64}' is not a SHA-256 in base64")
        return "bl-" + digest.hex()

    def put(self, data: bytes, sha256: str = "") -> Stored:
        """Keep bytes. With `sha256`, they must have that hash: BlobError if not."""
        draft = self.draft()
        with draft:
            draft.write(data)
            return draft.keep(sha256)

    def draft(self) -> Draft:
        """For content that comes in pieces."""
        return Draft(self, self._drafts / f"{secrets.token_hex(8)}.new")

    def part_path(self, blob_id: str, number: int, upload: str = "") -> Path:
        """Where one part of a multipart upload is kept until all are there. Ranks that return the same content upload it at the same time,
        so each `upload` has parts of its own."""
        return self._drafts / f"{sha256_of(blob_id)}.{upload}.part{number}"

    def join_parts(self, blob_id: str, count: int, upload: str = "") -> tuple[Stored, str]:
        """All parts become the blob; also the ETag of the whole, as S3 makes it. BlobError when a part is missing: the others are kept."""
        parts = [self.part_path(blob_id, number, upload) for number in range(1, count + 1)]
        missing = [str(number) for number, part in enumerate(parts, 1) if not part.exists()]
        if missing:
            raise BlobError(f"parts {', '.join(missing)} of {count} were not uploaded")
        etags = hashlib.md5(usedforsecurity=False)
        draft = self.draft()
        with draft:
            for part in parts:
                etags.update(_copy(part, draft))
            stored = draft.keep(sha256_of(blob_id))
        for part in parts:
            part.unlink(missing_ok=True)
        return stored, f"{etags.hexdigest()}-{count}"

    def settle(self, draft: Path, target: Path) -> None:
        """Rename a finished draft into place, durably where that is asked for."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._synced:
            _sync(draft)
        os.replace(draft, target)
        if self._synced:
            _sync(target.parent)

    def target(self, sha256: str) -> Path:
        return self._path(sha256)

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256


class Draft:
    """Content on its way in. `with` it: what was not kept is removed."""

    def __init__(self, blobs: Blobs, path: Path) -> None:
        self._blobs = blobs
        self._path = path
        self._file: BinaryIO | None = None
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._size = 0

    def __enter__(self) -> Draft:
        self._file = open(self._path, "wb")  # noqa: SIM115 - closed in __exit__
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        assert self._file is not None
        self._file.write(data)
        self._sha256.update(data)
        self._md5.update(data)
        self._size += len(data)

    def keep(self, sha256: str = "") -> Stored:
        """Make it content. With `sha256`, it must have that hash."""
        stored = self._finish()
        if sha256 and stored.sha256 != sha256:
            raise BlobError(f"the content has sha256 {stored.sha256}, and {sha256} was announced: it changed or was cut off on the way")
        self._blobs.settle(self._path, self._blobs.target(stored.sha256))
        return stored

    def keep_as_part(self, path: Path) -> Stored:
        """Make it a part of a multipart upload."""
        stored = self._finish()
        self._blobs.settle(self._path, path)
        return stored

    def _finish(self) -> Stored:
        assert self._file is not None
        self._file.close()
        return Stored(self._sha256.hexdigest(), self._md5.hexdigest(), self._size)


def sha256_of(blob_id: str) -> str:
    """The hash in a blob id; BlobError for anything else, so that no id can name a path."""
    if not _BLOB_ID.fullmatch(blob_id):
        raise BlobError(f"'{blob_id}' is not a blob id of this server")
    return blob_id.removeprefix("bl-")


def _copy(part: Path, draft: Draft) -> bytes:
    """Append a part; returns the MD5 of what it held."""
    md5 = hashlib.md5(usedforsecurity=False)
    with open(part, "rb") as file:
        while chunk := file.read(CHUNK):
            md5.update(chunk)
            draft.write(chunk)
    return md5.digest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
