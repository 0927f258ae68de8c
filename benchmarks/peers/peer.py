"""What every measured system has in common, and the round that all command-line launchers share."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

RANK_PROGRAM = Path(__file__).with_name("rank.py")
ROUND_LIMIT_S = 120.0


class RoundFailed(Exception):
    """A peer did not do what was measured; the text is what it said."""


@dataclass(frozen=True)
class Timing:
    """Seconds from the call. `in_code`: the last rank's first statement; `result`: every rank's success known to the caller."""

    in_code: float | None       # None where there are no ranks, or where the peer tells it later
    result: float


class Peer(Protocol):
    name: str
    launches: Sequence[bool]        # which launches it has: with False and True for `runner`
    has_warm: bool

    def missing(self) -> str:
        """Why it can't be measured here; empty when it can. Cheap, starts nothing."""
        ...

    def version(self) -> str: ...

    def start(self, folder: Path, size: int) -> None:
        """Bring up daemons for `size` nodes; everything it writes goes below `folder`."""
        ...

    def round(self, size: int, runner: bool) -> Timing:
        """One launch of `size` ranks. `runner`: each rank imports the client's container runner before its first statement."""
        ...

    def warm_round(self, size: int) -> Timing:
        """One call on what is already there: processes that live, imports that are done."""
        ...

    def stop(self) -> None: ...


class Launcher:
    """The part of a peer that starts processes and keeps none."""

    launches: Sequence[bool] = (False, True)
    has_warm = False

    def warm_round(self, size: int) -> Timing:
        raise NotImplementedError

    def start(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True)

    def stop(self) -> None:
        pass


def rank_command(python: str, runner: bool) -> list[str]:
    return [python, str(RANK_PROGRAM), *(["--runner"] if runner else [])]


def timed_command(command: Sequence[str], size: int, env: Mapping[str, str] | None = None) -> Timing:
    """Run a launcher whose ranks write one line each, with the time of their first statement, to the standard output that it passes on."""
    reading, writing = os.pipe()
    called = time.monotonic()
    launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE, env=env)
    os.close(writing)
    try:
        return timing_from_lines(reading, size, called)
    except RoundFailed as failure:
        launcher.kill()
        said = launcher.communicate()[1].decode(errors="replace")[-800:]
        raise RoundFailed(f"{failure}: {' '.join(command[:6])}… said: {said}") from None
    finally:
        os.close(reading)
        launcher.communicate(timeout=ROUND_LIMIT_S)


def timing_from_lines(reading: int, size: int, called: float) -> Timing:
    """Read until every rank's line has arrived."""
    text, deadline = b"", called + ROUND_LIMIT_S
    while text.count(b"\n") < size:
        if not select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise RoundFailed(f"{len(text.splitlines())} of {size} ranks wrote their line within {ROUND_LIMIT_S:.0f} s")
        piece = os.read(reading, 65536)
        if not piece:
            raise RoundFailed(f"{len(text.splitlines())} of {size} ranks wrote their line")
        text += piece
    done = time.monotonic()
    stamps = [float(line.split()[-1]) for line in text.decode().splitlines()]
    return Timing(max(stamps) - called, done - called)


def output_of(*command: str) -> str:
    """What a command prints, for version strings."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout.strip()
