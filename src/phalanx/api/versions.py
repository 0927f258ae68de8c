"""What a client of some version can take."""

from __future__ import annotations

import re

_BUILDERS = (((1, 6, 4), "2026.10"), ((1, 3, 5), "2025.06"), ((0,), "2024.10"))
"""The newest image builder that a client from this version on knows; it aborts on a newer one (reference: protocol.md, Images)."""


def builder_version(client_version: str) -> str:
    """The image builder for a client; one that does not say its version gets the one that all know."""
    numbers = version_tuple(client_version)
    return next((builder for since, builder in _BUILDERS if numbers >= since), _BUILDERS[-1][1])


def version_tuple(version: str) -> tuple[int, ...]:
    """ "1.6.4.dev2" is (1, 6, 4); nothing is ()."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
