"""The real server and the real agents in every weather: hours in a second, on virtual time and a virtual network.

    PHALANX_WEATHER_SEED=17 pytest tests/weather/test_simulated.py       the same world again, event by event
    PHALANX_WEATHER_HOURS=2000 PHALANX_WEATHER_SEED=17 pytest …          a longer one

Without a seed `make test` takes the same ones each time, so that what fails is what was changed; the test in `make test-full` and
`make weather` take new ones, and print them. world.py says what is checked, faults.py what can go wrong.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.weather.world import World

SEED = os.environ.get("PHALANX_WEATHER_SEED")
HOURS = float(os.environ.get("PHALANX_WEATHER_HOURS", 6))
SECONDS = float(os.environ.get("PHALANX_WEATHER_SECONDS", 120))


@pytest.mark.parametrize("seed", [int(SEED)] if SEED else [1, 2])
def test_a_bad_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A fault every ten minutes."""
    print(f"PHALANX_WEATHER_SEED={seed}")
    World(tmp_path, seed, monkeypatch).live(HOURS, fault_every_s=600)


@pytest.mark.parametrize("seed", [int(SEED)] if SEED else [3])
def test_a_storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Twice the people, and a fault every two minutes: mostly before the last one is over."""
    print(f"PHALANX_WEATHER_SEED={seed}")
    world = World(tmp_path, seed, monkeypatch, people=6)
    world.think_s = 300.0
    world.live(HOURS / 3, fault_every_s=120)


@pytest.mark.full
@pytest.mark.timeout(SECONDS * 5 + 600)
def test_a_long_winter(tmp_path: Path) -> None:
    """World after world, each from a new seed, until the time is over."""
    ends, dice = time.monotonic() + SECONDS, random.SystemRandom()
    while time.monotonic() < ends:
        seed, is_storm = dice.randrange(1 << 31), dice.random() < 0.5
        print(f"{'test_a_storm' if is_storm else 'test_a_bad_day'}: PHALANX_WEATHER_SEED={seed}", flush=True)
        folder = tmp_path / str(seed)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            (test_a_storm if is_storm else test_a_bad_day)(folder, patch, seed)
