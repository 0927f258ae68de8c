"""Ids as the client knows them: a prefix that names the kind, and random letters (reference: protocol.md, `modal run`)."""

from __future__ import annotations

import random
import string

_ALPHABET = string.ascii_letters + string.digits


def new_id(prefix: str, randomness: random.Random) -> str:
    """A fresh id such as `fu-…`. Never ends in "V": the client takes a task id that does for a sandbox."""
    letters = "".join(randomness.choice(_ALPHABET) for _ in range(21))
    return f"{prefix}-{letters}{randomness.choice(_ALPHABET.replace('V', ''))}"
