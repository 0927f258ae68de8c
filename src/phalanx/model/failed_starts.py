"""A function whose starts fail in import or @enter, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass
class CrashedStarts:
    """In a row, up to now. Gone when one comes through, or its code is another."""

    KEY: ClassVar = ("function_id",)

    function_id: str
    app_id: str
    count: int = 0
    node_ids: list[str] = field(default_factory=list)   # where the first rank that failed was, each node once
    rests: int = 0              # how often its next start was made to wait
    until_ms: int = 0           # no start before
    why: str = ""               # for people
