"""Nodes that are kept for an input, as the server remembers them: its gang lost a member, or others were stopped for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass
class KeptNodes:
    """Until the input has a cluster again, needs none any more, or the time is over. Only free nodes are kept in fact."""

    KEY: ClassVar = ("input_id",)

    input_id: str
    function_id: str
    node_ids: list[str] = field(default_factory=list)
    until_ms: int = 0
    victims: list[str] = field(default_factory=list)    # clusters that were stopped for it
