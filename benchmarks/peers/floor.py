"""The floor: fork and exec of the ranks by the caller itself. No scheduler, no isolation, no result but a line on a pipe."""

from __future__ import annotations

import os
import platform
import subprocess
import time

from peers.peer import Launcher, Timing, rank_command, timing_from_lines


class Floor(Launcher):
    name = "fork+exec"

    def __init__(self, python: str) -> None:
        self._python = python

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return f"Python {platform.python_version()}, Linux {platform.release()}"

    def round(self, size: int, runner: bool) -> Timing:
        reading, writing = os.pipe()
        command = rank_command(self._python, runner)
        called = time.monotonic()
        # A session each, as the launchers give them: on a busy machine the kernel shares the CPUs among sessions (autogroup), and ranks of
        # one session would get one share between them.
        ranks = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writing, start_new_session=True) for _ in range(size)]
        os.close(writing)
        try:
            return timing_from_lines(reading, size, called)
        finally:
            os.close(reading)
            for rank in ranks:
                rank.wait()
