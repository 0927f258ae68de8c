"""How the control plane bears load: writes beside a backup, calls that wait, one app with very many inputs, log lines, a restart.

    python benchmarks/load.py [--seconds 60] [--agents 50] [--clients 20] [--spawned 100000] [--database postgresql://…] [--only writes]

The server is a process of its own with `durability=full`; agents and containers are fakes and share a second process with the
clients, so a request's time holds the clients' own share of the machine too. `benchmarks/README.md` says how to read it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.harness import loads
from tests.harness.apart import PlaneApart
from tests.harness.callers import Caller
from tests.harness.waiting import until

from phalanx.config import Config

Row = tuple[str, str]
AS_SERVED = {"recount": "no"}       # what tests add to every plan was a fifth of the server's time


def main() -> None:
    options = parse()
    rows: list[Row] = []
    for name, measure in MEASURES.items():
        if options.only in ("", name):
            with tempfile.TemporaryDirectory(prefix="pb-") as folder, plane_of(Path(folder), options.database) as plane:
                rows += measure(plane, Path(folder), options)
                rows += [(f"{name}: memory of the server", f"{plane.memory_mib():.0f} MiB")]
                assert "database is locked" not in plane.log(), plane.log()
    width = max(len(what) for what, _ in rows)
    for what, figure in rows:
        print(f"{what:<{width}}  {figure}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument("--spawned", type=int, default=100_000)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--database", default="", help="an empty PostgreSQL database instead of SQLite; one for each of --only")
    parser.add_argument("--only", default="", choices=["", *MEASURES])
    return parser.parse_args()


@contextmanager
def plane_of(folder: Path, database: str) -> Iterator[PlaneApart]:
    plane = PlaneApart(folder / "plane", Config(durability="full", database=database, extra=dict(AS_SERVED)))
    plane.start()
    try:
        yield plane
    finally:
        plane.stop()


def writes(plane: PlaneApart, folder: Path, options: argparse.Namespace) -> list[Row]:
    with loads.fleets(plane, options.agents):
        function_id, before = Caller(plane).function(), plane.cpu_s()
        with loads.backups(plane, folder) as sizes:
            waits = loads.write_for(plane, function_id, options.clients, options.seconds)
    assert not waits.errors, waits.errors
    rate = len(waits.ms) / options.seconds
    return [
        (f"writes: {options.agents} agents, {options.clients} clients, {options.seconds:.0f} s", f"{len(waits.ms)} calls, {rate:.0f}/s"),
        ("writes: a call is acknowledged", told(waits)),
        ("writes: processor time of the server for a whole call", f"{(plane.cpu_s() - before) / len(waits.ms) * 1000:.1f} ms"),
        ("writes: backups meanwhile", f"{len(sizes)}, the last {sizes[-1] / 2**20:.1f} MiB"),
    ]


def waiting(plane: PlaneApart, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Calls of fifty functions, each a gang of more nodes than are free."""
    with loads.fleets(plane, 4) as fleets:
        for fleet in fleets:
            fleet.program = hold
        functions = loads.many_functions(plane, 50, gpu="H100:8", size=4)
        each = options.waiting // len(functions)
        waits = loads.Waits()
        for function_id in functions:
            waits.ms += loads.spawn(plane, function_id, each, at_once=5).ms
        asked = loads.ask_status(plane, functions[0])
    return [
        (f"waiting: {options.waiting} calls of 50 functions, one is acknowledged", told(waits)),
        ("waiting: a question beside them", told(asked)),
    ]


def spawned(plane: PlaneApart, folder: Path, options: argparse.Namespace) -> list[Row]:
    function_id, other = loads.many_functions(plane, 2)
    before, began, used = plane.memory_mib(), time.monotonic(), plane.cpu_s()
    waits = loads.spawn(plane, function_id, options.spawned)
    took, memory, used = time.monotonic() - began, plane.memory_mib(), plane.cpu_s() - used
    asked = loads.ask_status(plane, other)
    plane.kill()
    plane.start()
    restart = plane.started_s
    with loads.fleets(plane, 10):
        some = loads.stats(plane, function_id).backlog
        began = time.monotonic()
        until(lambda: loads.stats(plane, function_id).backlog < some - 2_000, 600)
        rate = (some - loads.stats(plane, function_id).backlog) / (time.monotonic() - began)
    return [
        (f"spawned: {options.spawned} calls of one app", f"{took:.0f} s, {options.spawned / took:.0f}/s, {memory - before:.0f} MiB more"),
        ("spawned: a call is acknowledged", told(waits)),
        ("spawned: processor time of the server for a call", f"{used / options.spawned * 1000:.2f} ms"),
        ("spawned: a question beside them", told(asked)),
        ("spawned: kill -9 and start until it serves", f"{restart:.1f} s"),
        ("spawned: the first 2,000 of them run by fakes", f"{rate:.0f}/s"),
    ]


def logs(plane: PlaneApart, folder: Path, options: argparse.Namespace) -> list[Row]:
    """In the server's own process: 16 ranks, 10,000 lines a second together for ten seconds, each rank a batch every 100 ms."""
    from tests.harness.control_plane import ControlPlane
    from tests.harness.fake_logs import FakeCluster

    alone = ControlPlane(folder / "logs", Config(durability="full", extra=dict(AS_SERVED)))
    alone.start()
    cluster = FakeCluster(alone, Caller(alone).app_id, size=16)
    batch = [(1, time.time_ns(), b"a line as programs write them, of eighty characters and with a number at its end\n")] * 62
    size = sum(13 + len(data) for _, _, data in batch)
    waits, lines = loads.Waits(), 0
    offsets = dict.fromkeys(range(16), 0)

    async def rank(number: int) -> None:
        nonlocal lines
        for _ in range(100):
            began = time.perf_counter()
            offsets[number] += size
            await cluster._ingest(number, offsets[number] - size, batch, offsets[number])
            waits.ms.append((time.perf_counter() - began) * 1000)
            lines += len(batch)
            await asyncio.sleep(max(0.0, 0.1 - (time.perf_counter() - began)))

    async def all_ranks() -> None:
        await asyncio.gather(*(rank(number) for number in range(16)))

    began = time.monotonic()
    asyncio.run_coroutine_threadsafe(all_ranks(), alone.loop).result(600)
    took = time.monotonic() - began
    alone.stop()
    return [
        ("logs: 16 ranks, 9,920 lines a second wanted", f"{lines / took:.0f} lines/s"),
        ("logs: a batch of 62 lines is acknowledged", told(waits)),
    ]


def restart(plane: PlaneApart, folder: Path, options: argparse.Namespace) -> list[Row]:
    """What a kill -9 costs when 100 clusters run and 1,000 calls are open."""
    with loads.fleets(plane, options.clusters) as fleets:
        for fleet in fleets:
            fleet.program = hold
        function_id = Caller(plane).function(gpu="H100:8", size=1, clustered=True)
        loads.spawn(plane, function_id, options.waiting)
        until(lambda: sum(bool(fleet.ran) for fleet in fleets) == options.clusters, 300)
        plane.kill()
        plane.start()
        return [(f"restart: {options.waiting} calls, {options.clusters} clusters, kill -9 until it serves", f"{plane.started_s:.2f} s")]


async def hold(rank: object, item: object) -> None:
    await asyncio.sleep(3600)


def told(waits: loads.Waits) -> str:
    return f"p50 {waits.percentile(0.5):.1f} ms, p99 {waits.percentile(0.99):.1f} ms, longest {max(waits.ms):.0f} ms"


MEASURES: dict[str, Callable[[PlaneApart, Path, argparse.Namespace], list[Row]]] = {
    "writes": writes, "waiting": waiting, "spawned": spawned, "logs": logs, "restart": restart,
}


if __name__ == "__main__":
    main()
