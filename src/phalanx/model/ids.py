"""Ids as the client knows them: a prefix that names the kind, and random letters (reference: protocol.md, `modal run`)."""

from __future__ import annotations

import random
import string

_ALPHABET = string.ascii_letters + string.digits
_LAST = _ALPHABET.replace("V", "")
_BITS = 192     # 22 letters are 131 bits: the rest makes every letter as likely as any other


def new_id(prefix: str, randomness: random.Random) -> str:
    """A fresh id such as `fu-…`. Never ends in "V": the client takes a task id that does for a sandbox."""
    number, last = divmod(randomness.getrandbits(_BITS), len(_LAST))     # once: a draw from the system's source is a system call
    letters = []
    for _ in range(21):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return f"{prefix}-{''.join(letters)}{_LAST[last]}"
