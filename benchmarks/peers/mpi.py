"""mpirun: Open MPI's launcher. On one machine it forks the ranks itself; it has no daemon that stays."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from peers.peer import Launcher, Timing, output_of, rank_command, timed_command


class Mpirun(Launcher):
    name = "mpirun"

    def __init__(self, python: str) -> None:
        self._python = python
        self._env: dict[str, str] = {}

    def missing(self) -> str:
        return "" if shutil.which("mpirun") else "not installed"

    def version(self) -> str:
        return output_of("mpirun", "--version").splitlines()[0].replace("mpirun (", "").replace(")", "")

    def start(self, folder: Path, size: int) -> None:
        super().start(folder, size)
        self._env = os.environ | {"TMPDIR": str(folder)}       # its session folders

    def round(self, size: int, runner: bool) -> Timing:
        flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(size)]
        return timed_command(["mpirun", *flags, *rank_command(self._python, runner)], size, self._env)
