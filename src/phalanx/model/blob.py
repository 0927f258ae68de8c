"""Contents too large for a message: kept by their hash."""

from __future__ import annotations

from dataclasses import dataclass


class BlobError(Exception):
    """What came does not match what was announced, or is not there."""


@dataclass(frozen=True)
class Stored:
    """One content that is kept: its hashes in hex, its size in bytes."""

    sha256: str
    md5: str
    size: int
