"""torchrun on one machine: --standalone, all ranks as workers of one agent."""

from __future__ import annotations

import os
from pathlib import Path

from peers.peer import Launcher, Timing, output_of, rank_command, timed_command


class Torchrun(Launcher):
    name = "torchrun"

    def __init__(self, python: Path | None) -> None:
        """`python`: the interpreter of the environment with torch and modal."""
        self._python = python
        self._env: dict[str, str] = {}

    def missing(self) -> str:
        return "" if self._python and (self._python.parent / "torchrun").exists() else "not installed"

    def version(self) -> str:
        return "torch " + output_of(str(self._python), "-c", "import importlib.metadata as m; print(m.version('torch'))")

    def start(self, folder: Path, size: int) -> None:
        super().start(folder, size)
        self._env = os.environ | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}

    def round(self, size: int, runner: bool) -> Timing:
        launcher = [str(self._python), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}", "--no-python"]
        return timed_command([*launcher, *rank_command(str(self._python), runner)], size, self._env)
