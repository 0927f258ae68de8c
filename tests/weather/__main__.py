"""Simulated worlds, many at a time, for as long as one likes; needs no root and no runtime. `--help` says how.

    python -m tests.weather --seconds 600 --jobs 16 > weather.txt     worlds from new seeds; the last line sums them up
    python -m tests.weather --kind storm --seed 17                    one of them again, event by event

A line for each world as it ends; one that breaks a rule says which, and how to see it again, and the others go on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.weather.kinds import KINDS, some_kind
from tests.weather.world import Wrong

LONGEST_S = 600.0       # of one world in real time: one that takes longer goes round and round at one moment
FORK = multiprocessing.get_context("fork")      # a world's own process, with everything imported


@dataclass
class Story:
    """What came of one world."""

    kind: str
    seed: int
    hours: float = 0.0
    seconds: float = 0.0        # of real time
    faults: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    ends: Counter[str] = field(default_factory=Counter)     # of outputs, by status
    wrong: str = ""
    digest: str = ""            # of all that was ever committed

    @property
    def again(self) -> str:
        return f"python -m tests.weather --kind {self.kind} --seed {self.seed}"

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        ends = ", ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        how = f"WRONG ({self.again}):\n{self.wrong}" if self.wrong else "all as it should be"
        return (
            f"{self.kind} {self.seed}: {self.hours:.1f} h; {self.faults.total()} faults ({faults}); {self.calls} calls, "
            f"outputs {ends or 'none'}; {self.digest}; {how}")


def main() -> int:
    asked = _arguments()
    if asked.seed is not None:
        story = tell(asked.kind, asked.seed, asked.hours)
        print(story)
        return bool(story.wrong)
    stories = many(asked.seconds, asked.jobs, asked.kind, asked.hours)
    return summary(stories)


def tell(kind: str, seed: int, hours: float | None = None) -> Story:
    """One world, in this process."""
    story, began = Story(kind, seed), time.monotonic()
    memory = Path("/dev/shm")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        world = KINDS[kind](Path(folder), seed, patch)
        if hours is not None:
            world.hours = hours
        try:
            world.live()
        except Wrong as wrong:
            story.wrong = str(wrong)
        except BaseException:
            story.wrong = f"the world itself came to an end: {traceback.format_exc()}"
        counts = world.truth.counts
        story.hours, story.faults, story.calls = world.loop.time() / 3600, world.faults, counts["calls acknowledged"]
        story.ends.update({name.removeprefix("outputs "): n for name, n in counts.items() if name.startswith("outputs ")})
        story.digest = world.truth.digest.hexdigest()[:16]
    story.seconds = time.monotonic() - began
    return story


# ---------------------------------------------------------------- many


@dataclass
class Running:
    story: Story
    process: Any
    began: float


def many(seconds: float, jobs: int, kind: str | None, hours: float | None) -> list[Story]:
    """Begin worlds until the time is over, `jobs` at a time; return when the last has ended."""
    ends, dice = time.monotonic() + seconds, random.SystemRandom()
    running: dict[Connection, Running] = {}
    stories: list[Story] = []
    while running or time.monotonic() < ends:
        while len(running) < jobs and time.monotonic() < ends:
            one = Story(kind or some_kind(dice), dice.randrange(1 << 31))
            ours, theirs = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_tell_to, args=(theirs, one.kind, one.seed, hours))
            process.start()
            theirs.close()
            running[ours] = Running(one, process, time.monotonic())
        for connection in multiprocessing.connection.wait(list(running), timeout=1.0):
            stories.append(_heard(connection, running.pop(connection)))      # type: ignore[arg-type,call-overload]
        for one_running in running.values():
            if time.monotonic() - one_running.began > LONGEST_S:
                one_running.process.kill()      # its end of the pipe closes
    return stories


def _tell_to(connection: Connection, kind: str, seed: int, hours: float | None) -> None:
    sys.stderr = open(os.devnull, "w")      # noqa: SIM115 - what servers log; for as long as this process lives
    connection.send(tell(kind, seed, hours))


def _heard(connection: Connection, running: Running) -> Story:
    try:
        story: Story = connection.recv()
    except EOFError:
        story = running.story
        running.process.join()
        story.wrong = f"its process ended with {running.process.exitcode} after {time.monotonic() - running.began:.0f} s"
    running.process.join()
    connection.close()
    print(story, flush=True)
    return story


def summary(stories: list[Story]) -> int:
    """The last line; 1 where a rule was broken."""
    wrong = [story for story in stories if story.wrong]
    for story in wrong:
        print(f"again: {story.again}")
    hours, faults = sum(story.hours for story in stories), sum(story.faults.total() for story in stories)
    print(
        f"{len(stories)} worlds, {hours:.0f} simulated hours, {faults} faults, {sum(story.calls for story in stories)} calls, "
        f"{sum(story.ends.total() for story in stories)} outputs, {len(wrong)} violations "
        f"({sum(story.seconds for story in stories):.0f} s of work)")
    return bool(wrong)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.weather", description="Simulated worlds of a control plane in bad weather.")
    parser.add_argument("--seconds", type=float, default=600, help="begin worlds for so long (600)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="worlds at a time (all cores)")
    parser.add_argument("--kind", choices=list(KINDS), help="only worlds of this kind")
    parser.add_argument("--seed", type=int, help="this world, once")
    parser.add_argument("--hours", type=float, help="so many hours of weather, instead of what its kind has")
    asked = parser.parse_args()
    if asked.seed is not None and asked.kind is None:
        parser.error("--seed needs --kind: a world is both")
    return asked


if __name__ == "__main__":
    sys.exit(main())
