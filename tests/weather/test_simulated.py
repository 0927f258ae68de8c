"""The real server and the real agents in every weather: hours in a second, on virtual time and a virtual network.

    PHALANX_WEATHER_SEED=17 pytest tests/weather/test_simulated.py       the same worlds again, event by event
    python -m tests.weather --seconds 600 --jobs 16                      worlds from new seeds, many at a time (__main__.py)

Without a seed `make test` takes the same ones each time, so that what fails is what was changed; the test in `make test-full` and
`make weather` take new ones, and print them. world.py says what is checked, faults.py what can go wrong, kinds.py which worlds there are.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.weather.kinds import KINDS, bad_day, some_kind, storm

SEED = os.environ.get("PHALANX_WEATHER_SEED")
SECONDS = float(os.environ.get("PHALANX_WEATHER_SECONDS", 120))


@pytest.mark.parametrize("seed", [int(SEED)] if SEED else [1, 2])
def test_a_bad_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    bad_day(tmp_path, seed, monkeypatch).live()


@pytest.mark.parametrize("seed", [int(SEED)] if SEED else [3])
def test_a_storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    storm(tmp_path, seed, monkeypatch).live()


@pytest.mark.full
@pytest.mark.timeout(SECONDS * 5 + 600)
def test_a_long_winter(tmp_path: Path) -> None:
    """World after world, each from a new seed, until the time is over."""
    ends, dice = time.monotonic() + SECONDS, random.SystemRandom()
    while time.monotonic() < ends:
        seed, kind = dice.randrange(1 << 31), some_kind(dice)
        print(f"python -m tests.weather --kind {kind} --seed {seed}", flush=True)
        folder = tmp_path / str(seed)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            KINDS[kind](folder, seed, patch).live()


def test_a_seed_is_the_same_world_again(tmp_path: Path) -> None:
    """Whatever the hash seed of the process: nothing is decided by the order of a set."""
    worlds = [_run("bad_day", 5, 1.0, hash_seed) for hash_seed in ("0", "1")]
    assert worlds[0] == worlds[1]


def _run(kind: str, seed: int, hours: float, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.weather", "--kind", kind, "--seed", str(seed), "--hours", str(hours)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
