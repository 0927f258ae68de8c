"""A secret: environment variables for the containers of the functions that name it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass
class Secret:
    """Its values are in the state folder as they are, which only its owner may read; they are logged and shown nowhere."""

    KEY: ClassVar = ("secret_id",)

    secret_id: str
    values: dict[str, str] = field(default_factory=dict, repr=False)
    created_ms: int = 0
