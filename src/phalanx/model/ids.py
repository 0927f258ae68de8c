"""Ids as the client knows them: a prefix that names the kind, and random letters (reference: protocol.md, `modal run`)."""

from __future__ import annotations

import random
import string

_ALPHABET = string.ascii_letters + string.digits
_LAST = _ALPHABET.replace("V", "")
_LENGTH = 22
_BITS = 160     # more than 62**22 needs, by so many that no letter is likelier than another


def new_id(prefix: str, randomness: random.Random) -> str:
    """A fresh id such as `fu-…`. Never ends in "V": the client takes a task id that does for a sandbox."""
    number = randomness.getrandbits(_BITS)      # once: a letter each was a quarter of what a spawned call costs the server
    number, last = divmod(number, len(_LAST))
    letters = [_LAST[last]]
    while len(letters) < _LENGTH:
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return f"{prefix}-{''.join(reversed(letters))}"
