"""The kinds of simulated worlds: how long, how many people, how often something goes wrong. A world is its kind and its seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.weather.world import World


def bad_day(folder: Path, seed: int, patch: pytest.MonkeyPatch) -> World:
    """A fault every ten minutes."""
    return World(folder, seed, patch)


def storm(folder: Path, seed: int, patch: pytest.MonkeyPatch) -> World:
    """Twice the people, and a fault every two minutes: mostly before the last one is over."""
    world = World(folder, seed, patch, people=6, hours=2, fault_every_s=120)
    world.think_s = 300.0
    return world


def winter(folder: Path, seed: int, patch: pytest.MonkeyPatch) -> World:
    """Days, in which what is old goes."""
    return World(folder, seed, patch, hours=60, fault_every_s=900, keep_hours=12)


KINDS: dict[str, Callable[[Path, int, pytest.MonkeyPatch], World]] = {"bad_day": bad_day, "storm": storm, "winter": winter}
_OFTEN = {"bad_day": 3, "storm": 3, "winter": 1}


def some_kind(dice: random.Random) -> str:
    return dice.choices(list(KINDS), [_OFTEN[name] for name in KINDS])[0]
