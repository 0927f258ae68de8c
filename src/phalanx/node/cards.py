"""Which container has which of a real node's GPUs. Nothing is written down here: each container's spec.json says its own."""

from __future__ import annotations

from collections.abc import Iterable

from .gpus import Card


class NoCard(Exception):
    """More GPUs are asked for than are free; the text has the counts."""


class Cards:
    def __init__(self, cards: Iterable[Card] = ()) -> None:
        self._all = sorted(cards, key=lambda card: card.minor)
        self._held: dict[str, list[int]] = {}       # container → minors

    def take(self, name: str, count: int) -> list[Card]:
        """That many for this container alone, lowest first. Raises NoCard."""
        held = {minor for minors in self._held.values() for minor in minors}
        free = [card for card in self._all if card.minor not in held]
        if count > len(free):
            raise NoCard(f"{count} GPUs are asked for, and {len(free)} of {len(self._all)} are free")
        self._held[name] = [card.minor for card in free[:count]]
        return free[:count]

    def adopt(self, name: str, minors: list[int]) -> None:
        """What a container of an earlier agent has."""
        self._held[name] = minors

    def free(self, name: str) -> None:
        self._held.pop(name, None)
