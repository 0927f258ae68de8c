"""Ray: a placement group STRICT_SPREAD and one task a bundle, on a cluster of N nodes on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

from peers.driver import Driver
from peers.peer import Timing, output_of

DRIVER = Path(__file__).with_name("ray_driver.py")
RELEASE_S = 2.0     # back-to-back groups wait for the release of the one before, which is not what is measured


class Ray:
    name = "Ray"
    launches = (False, True)
    has_warm = True

    def __init__(self, python: Path | None) -> None:
        """`python`: the interpreter of the environment with ray and modal."""
        self._python = python
        self._driver: Driver | None = None

    def missing(self) -> str:
        return "" if self._python and (self._python.parent / "ray").exists() else "not installed"

    def version(self) -> str:
        return "ray " + output_of(str(self._python), "-c", "import importlib.metadata as m; print(m.version('ray'))")

    def start(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True)
        env = os.environ | {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
        self._driver = Driver([str(self._python), str(DRIVER), str(size)], folder / "driver.log", env)
        self.round(size, runner=False)

    def round(self, size: int, runner: bool) -> Timing:
        timing = Timing(**self._driver.ask(size=size, runner=runner, warm=False))
        time.sleep(RELEASE_S)
        return timing

    def warm_round(self, size: int) -> Timing:
        """Tasks in a group that is kept, on workers that have run them before."""
        return Timing(**self._driver.ask(size=size, runner=False, warm=True))

    def stop(self) -> None:
        if self._driver:
            self._driver.close()
        self._driver = None
