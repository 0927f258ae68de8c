"""The same weather on real processes: everything that has a pid is killed or stopped while the stock client works.

PHALANX_WEATHER_SEED replays the order of the faults (not their moments), PHALANX_WEATHER_SECONDS says how long: `make weather`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import fleet
from tests.end_to_end.inside import carriers_of, processes_of
from tests.end_to_end.live import Client, Live
from tests.harness.waiting import until

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 420.0      # for all that was called to end once the weather is fair
pytestmark = pytest.mark.root


def seconds(default: int) -> int:
    return int(os.environ.get("PHALANX_WEATHER_SECONDS", default))


@pytest.mark.timeout(1200)
def test_a_minute_of_kills_loses_no_call(tmp_path: Path) -> None:
    weather(tmp_path, seconds(60))


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_ten_minutes_of_kills_lose_no_call(tmp_path: Path) -> None:
    weather(tmp_path, seconds(600))


def weather(folder: Path, lasts_s: float) -> None:
    seed = int(os.environ.get("PHALANX_WEATHER_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"PHALANX_WEATHER_SEED={seed}")
    dice = random.Random(seed)
    with fleet(folder / "state", 4, grace_ms=3_000) as plane:
        ended = plane.modal("deploy", str(PROGRAMS / "storm.py"))
        assert ended.code == 0, ended
        env = {**os.environ, **plane.env}
        caller = Client([sys.executable, "-u", str(PROGRAMS / "storm_caller.py"), str(lasts_s), str(seed)], env)
        done: Counter[str] = Counter()
        try:
            caller.wait_for('"made"')
            storm(plane, dice, lasts_s, done)
            until(lambda: caller.process.poll() is not None, PATIENCE_S)
            caller.finish()
        finally:
            if caller.process.poll() is None:
                print("\n".join(caller.lines[-20:]))
                print(plane.phalanx("status"))
            caller.end()
        print(f"faults: {dict(done)}")
        check(caller.lines, done, plane)
        plane.modal("app", "stop", "storm", "--yes")
        plane.wait_until_empty()
        assert all(not node["unschedulable"] for node in plane.status()["nodes"])


# ---------------------------------------------------------------- faults


def storm(plane: Live, dice: random.Random, lasts_s: float, done: Counter[str]) -> None:
    ends = time.monotonic() + lasts_s
    while time.monotonic() < ends:
        time.sleep(dice.uniform(0.5, 6))
        fault = dice.choices(list(FAULTS), list(FAULTS.values()))[0]
        if fault(plane, dice):
            done[fault.__name__] += 1


def kill_server(plane: Live, dice: random.Random) -> bool:
    return _signal(plane, "server", signal.SIGKILL)


def kill_agent(plane: Live, dice: random.Random) -> bool:
    return _signal(plane, "agent", signal.SIGKILL)


def kill_front(plane: Live, dice: random.Random) -> bool:
    """Its sockets are the supervisor's too: who connects meanwhile waits for the next one."""
    return _signal(plane, "front", signal.SIGKILL)


def kill_both(plane: Live, dice: random.Random) -> bool:
    return _signal(plane, "server", signal.SIGKILL) | _signal(plane, "agent", signal.SIGKILL)


def stop_server(plane: Live, dice: random.Random) -> bool:
    return _pause(plane, "server", dice.uniform(0.5, 8))


def stop_agent(plane: Live, dice: random.Random) -> bool:
    return _pause(plane, "agent", dice.uniform(0.5, 8))


def kill_carrier(plane: Live, dice: random.Random) -> bool:
    """A shim, or the launcher that they are forks of."""
    return _kill_one(carriers_of(plane.paths.run), dice)


def kill_rank(plane: Live, dice: random.Random) -> bool:
    tasks = [task for cluster in plane.status()["clusters"] for task in cluster["containers"]]
    return bool(tasks) and _kill_one(processes_of(dice.choice(tasks)), dice)


FAULTS: dict[Callable[[Live, random.Random], bool], float] = {
    kill_server: 3, kill_front: 1, kill_agent: 2, kill_both: 1, stop_server: 1, stop_agent: 1, kill_carrier: 2, kill_rank: 2,
}  # fmt: skip


def _signal(plane: Live, name: str, number: int) -> bool:
    try:
        return plane.pid(name).signal(number)
    except (KeyError, FileNotFoundError):       # it is just being started again
        return False


def _pause(plane: Live, name: str, how_long_s: float) -> bool:
    try:
        process = plane.pid(name)
    except (KeyError, FileNotFoundError):
        return False
    if not process.signal(signal.SIGSTOP):
        return False
    time.sleep(how_long_s)
    process.signal(signal.SIGCONT)
    return True


def _kill_one(pids: list[int], dice: random.Random) -> bool:
    if not pids:
        return False
    try:
        os.kill(dice.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# ---------------------------------------------------------------- what must hold


def check(lines: list[str], done: Counter[str], plane: Live) -> None:
    """Every acknowledged call has its one right result, or an error that says truly what was done to it."""
    said: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    made = {one["made"]: one for one in said if "made" in one}
    got = Counter(one["got"] for one in said if "got" in one)
    assert set(got) == set(made), f"calls without an end: {set(made) - set(got)}"
    assert set(got.values()) <= {1}
    refused = [one["refused"] for one in said if "refused" in one]
    assert not refused, f"the front keeps clients waiting while the server is away: {refused}"
    errors = [one["error"] for one in said if "error" in one]
    print(f"{len(made)} calls, {sum('mapped' in one for one in said)} maps, errors: {errors}")
    for error in errors:
        assert "were not the program's fault" in error or ("signal 9" in error and done["kill_rank"]), error
    for one in said:
        if "value" in one:
            call = made[one["got"]]
            right = [call["x"] ** 2, 0] if call["function"] == "gang" else call["x"] + 1
            assert one["value"] == right, (call, one)
        if "values" in one:
            assert one["values"] == [x + 1 for x in one["mapped"]], one
    assert len(made) > 3, "the weather was so bad that nothing was called: this says nothing"
