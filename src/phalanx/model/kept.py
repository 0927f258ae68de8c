"""What the server keeps so that a retried request gets the same answer, and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass
class KeptAnswer:
    """The answer to one mutating or leasing request, written with its effect (design rule 6)."""

    KEY: ClassVar = ("caller", "rpc", "idempotency_key")

    caller: str
    rpc: str
    idempotency_key: str
    answer: bytes = b""
    created_ms: int = 0


@dataclass
class Counter:
    """A number that only grows: the last assignment given out, the last log sequence."""

    KEY: ClassVar = ("name",)

    name: str
    value: int = 0
