"""What an agent may go by while it can not be asked (design rule 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass
class GrantedLimits:
    """The limits that an agent was told last; while nobody knows whether it heard of newer ones, the longer of both. In milliseconds."""

    KEY: ClassVar = ("agent_id",)

    agent_id: str
    lease_ms: int
    outage_limit_ms: int    # 0: none
    silent_ms: int
