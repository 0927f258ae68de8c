"""A real control plane inside the test's process: the server and its sockets in a thread of their own, for real clients.

    control_plane.modal("app", "list")                        the stock command line, as a process
    control_plane.rpc("AppCreate", AppCreateRequest(…))       one request as any client version would send it
    control_plane.call(lambda: server.apps…)                  code in the server's thread; may be a coroutine function
    control_plane.advance(61_000)                             an hour in no time: due timers fire
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import logging
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import message_factory
from grpclib.client import Channel, UnaryUnaryMethod

from phalanx.api import serve
from phalanx.api.http_door import HttpDoor
from phalanx.api.transport import SERVICE
from phalanx.config import Config
from phalanx.paths import Paths
from phalanx.server.clock import RealClock
from phalanx.server.server import Server

LOCAL = "127.0.0.1"


class SteppedClock(RealClock):
    """Real time plus what a test adds. Timers fire when their time has come by either."""

    def __init__(self) -> None:
        super().__init__()
        self._added_ms = 0
        self._timers: list[tuple[int, int, _SteppedTimer]] = []
        self._numbers = itertools.count()

    def now_ms(self) -> int:
        return super().now_ms() + self._added_ms

    def elapsed_ms(self) -> int:
        return super().elapsed_ms() + self._added_ms

    def call_after(self, delay_ms: int, action: Callable[[], None]) -> _SteppedTimer:
        timer = _SteppedTimer(action)
        timer.real = asyncio.get_running_loop().call_later(max(delay_ms, 0) / 1000, timer.fire)
        heapq.heappush(self._timers, (self.now_ms() + delay_ms, next(self._numbers), timer))
        return timer

    def away(self, milliseconds: int) -> None:
        """Time that passes while no server is there to see it."""
        self._added_ms += milliseconds
        self._timers.clear()

    def advance(self, milliseconds: int) -> None:
        """In the server's thread: go forward from timer to timer."""
        until = self._added_ms + milliseconds
        while self._timers and self._timers[0][0] <= super().now_ms() + until:
            due_ms, _, timer = heapq.heappop(self._timers)
            self._added_ms = max(self._added_ms, due_ms - super().now_ms())
            timer.fire()
        self._added_ms = max(self._added_ms, until)


class _SteppedTimer:
    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action
        self.real: asyncio.TimerHandle | None = None

    def fire(self) -> None:
        action = self._action
        self.cancel()
        if action is not None:
            action()

    def cancel(self) -> None:
        self._action = None
        if self.real is not None:
            self.real.cancel()


class ControlPlane:
    """`start()` and `stop()` as often as a test likes: the state folder, the tokens and the port stay the same."""

    def __init__(self, folder: Path, config: Config | None = None) -> None:
        self.folder = folder
        self.config = (config or Config(durability="process")).with_secrets()
        self.config.extra.setdefault("recount", "yes")      # the planner's kept index and demand are compared with the world at every turn
        self.paths = Paths(folder / "state")
        self.tasks_socket = folder / "tasks.sock"
        self.port = _free_port()
        self.clock = SteppedClock()
        self.bugs: list[str] = []       # what the server logged as its own failures: a test fails when there are any
        self.server: Server = None      # type: ignore[assignment]
        self.loop: asyncio.AbstractEventLoop = None     # type: ignore[assignment]
        self._listener: Any = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://{LOCAL}:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """What points a client at this control plane, and away from the tester's own configuration."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": self.config.token_id,
            "MODAL_TOKEN_SECRET": self.config.token_secret,
            "MODAL_CONFIG_PATH": str(self.folder / "modal.toml"),
        }

    def start(self) -> None:
        started = threading.Event()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(started,), name="control-plane")
        self._thread.start()
        started.wait()
        self.call(self._open)

    def stop(self) -> None:
        if self._thread is None:
            return
        try:
            self.call(self._close)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self._thread = None
            self.loop.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function or coroutine function in the server's thread and return what it returns."""

        async def run() -> Any:
            result = function(*arguments)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(timeout=60)

    def change(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a noun's method as one unit of work: it gets the unit first, and is on disk when this returns."""

        async def run() -> Any:
            unit = self.server.unit()
            result = function(unit, *arguments)
            await unit.commit()
            return result

        return self.call(run)

    def advance(self, milliseconds: int) -> None:
        """Let time pass for the server, and let what its timers started come to rest."""

        async def run() -> None:
            self.clock.advance(milliseconds)
            await self.server.settled()

        self.call(run)

    def modal(self, *arguments: str, python: str = sys.executable, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
        """The stock command line. `python` names another environment's interpreter for another client version."""
        return subprocess.run(
            [python, "-m", "modal", *arguments],
            env=_clean_environment() | self.env | env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def rpc(self, name: str, request: Any, *, client_version: str = "1.6.4", key: str = "", **headers: str) -> Any:
        """One unary request with these headers; raises grpclib's GRPCError. `key`: the idempotency key, the same for a retry."""
        descriptor = SERVICE.methods_by_name[name]
        response_class = message_factory.GetMessageClass(descriptor.output_type)
        said = {
            "x-modal-client-version": client_version,
            "x-modal-client-type": "1",
            "x-modal-python-version": "3.11.7",
            "x-modal-token-id": self.config.token_id,
            "x-modal-token-secret": self.config.token_secret,
            "x-idempotency-key": key,
            **{header.replace("_", "-"): value for header, value in headers.items()},
        }

        metadata = {header: value for header, value in said.items() if value}

        async def ask() -> Any:
            channel = Channel(LOCAL, self.port)
            try:
                method = UnaryUnaryMethod(channel, f"/modal.client.ModalClient/{name}", type(request), response_class)
                return await method(request, metadata=metadata, timeout=30)
            finally:
                channel.close()

        return self.call(ask)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(started.set)
        self.loop.run_forever()

    async def _open(self) -> None:
        self._handler = _Collect(self.bugs)
        logging.getLogger("phalanx").addHandler(self._handler)
        self.server = Server(self.config, self.paths, self.clock, random.Random())
        self.server.end_process = lambda: self.bugs.append("the server would have ended its process")   # and pytest with it
        self.server.start()
        self._http = await HttpDoor.open(self.server)
        self._listener = serve.listener(self.server, self._http.protocol)
        public = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        public.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        public.bind((LOCAL, self.port))
        tasks = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.tasks_socket.unlink(missing_ok=True)
        tasks.bind(str(self.tasks_socket))
        await self._listener.serve(public, tasks)

    async def _close(self) -> None:
        await self._listener.close()
        await self._http.close()
        await self.server.settled()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self.server.close()
        self.clock.away(0)
        logging.getLogger("phalanx").removeHandler(self._handler)


class _Collect(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(self.format(record))


def _clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "PHALANX_"))}
    return kept | {"NO_COLOR": "1", "COLUMNS": "200"}


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])
