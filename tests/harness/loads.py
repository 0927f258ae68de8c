"""Loads: what many agents and clients do at once, and how long they waited. Used by test_load.py small, by benchmarks/load.py in full."""

from __future__ import annotations

import asyncio
import pickle
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from modal_proto import api_pb2

from phalanx.cli import archive
from tests.harness.apart import Client, PlaneApart
from tests.harness.callers import PICKLE, Caller
from tests.harness.fake_agents import FakeFleet

ASYNC = api_pb2.FUNCTION_CALL_INVOCATION_TYPE_ASYNC


@dataclass
class Waits:
    """How long each request took, in milliseconds."""

    ms: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        return sorted(self.ms)[min(int(len(self.ms) * share), len(self.ms) - 1)] if self.ms else 0.0


@contextmanager
def fleets(plane: PlaneApart, agents: int) -> Iterator[list[FakeFleet]]:
    """So many agents with a node each."""
    made = [FakeFleet(plane, 1, prefix=f"n{number}") for number in range(agents)]
    for fleet in made:
        fleet.start()
    yield made
    for fleet in made:
        fleet.stop()


@contextmanager
def backups(plane: PlaneApart, folder: Path) -> Iterator[list[int]]:
    """One backup after the other, beside what is done meanwhile; their sizes."""
    stop, sizes = threading.Event(), []

    def go_on() -> None:
        while not stop.is_set():
            sizes.append(archive.write(plane.paths, plane.config, folder / "backup.tar"))
            stop.wait(1)

    thread = threading.Thread(target=go_on)
    thread.start()
    yield sizes
    stop.set()
    thread.join()


def write_for(plane: PlaneApart, function_id: str, clients: int, seconds: float) -> Waits:
    """Clients that start a call, wait for its result, and begin again. Times are those of the call's acknowledgement."""
    waits = Waits()

    async def one() -> None:
        client = Client(plane)
        try:
            while time.monotonic() < ends:
                began = time.perf_counter()
                call = await client.ask("FunctionMap", _call(function_id), secrets.token_hex(8))
                waits.ms.append((time.perf_counter() - began) * 1000)
                await client.ask("FunctionGetOutputs", api_pb2.FunctionGetOutputsRequest(
                    function_call_id=call.function_call_id, timeout=50, last_entry_id="0-0", max_values=1))
        except Exception as error:
            waits.errors.append(repr(error))
        finally:
            client.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(clients)))

    ends = time.monotonic() + seconds
    asyncio.run_coroutine_threadsafe(all_of_them(), plane.loop).result(seconds + 120)
    return waits


def spawn(plane: PlaneApart, function_id: str, count: int, at_once: int = 20) -> Waits:
    """`.spawn()` so many times: a call each."""
    waits = Waits()

    async def some(number: int) -> None:
        client = Client(plane)
        for _ in range(number):
            began = time.perf_counter()
            await client.ask("FunctionMap", _call(function_id, ASYNC), secrets.token_hex(8))
            waits.ms.append((time.perf_counter() - began) * 1000)
        client.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(some(count // at_once) for _ in range(at_once)))

    asyncio.run_coroutine_threadsafe(all_of_them(), plane.loop).result(3600)
    return waits


def stats(plane: PlaneApart, function_id: str) -> api_pb2.FunctionStats:
    return plane.rpc("FunctionGetCurrentStats", api_pb2.FunctionGetCurrentStatsRequest(function_id=function_id))  # type: ignore[no-any-return]


def ask_status(plane: PlaneApart, function_id: str, times: int = 50) -> Waits:
    """How long a small question takes beside what is there."""
    waits = Waits()

    async def ask() -> None:
        client = Client(plane)
        for _ in range(times):
            began = time.perf_counter()
            await client.ask("FunctionGetCurrentStats", api_pb2.FunctionGetCurrentStatsRequest(function_id=function_id))
            waits.ms.append((time.perf_counter() - began) * 1000)
        client.close()

    plane.call(ask)
    return waits


def many_functions(plane: PlaneApart, count: int, **fields: object) -> list[str]:
    caller = Caller(plane, "load")
    return [caller.function(f"work{number}", **fields) for number in range(count)]  # type: ignore[arg-type]


def _call(function_id: str, invocation: int = api_pb2.FUNCTION_CALL_INVOCATION_TYPE_SYNC) -> api_pb2.FunctionMapRequest:
    item = api_pb2.FunctionPutInputsItem(input=api_pb2.FunctionInput(args=pickle.dumps(((1,), {})), data_format=PICKLE))
    return api_pb2.FunctionMapRequest(
        function_id=function_id, function_call_type=api_pb2.FUNCTION_CALL_TYPE_UNARY,
        function_call_invocation_type=invocation, pipelined_inputs=[item],  # type: ignore[arg-type]
    )
