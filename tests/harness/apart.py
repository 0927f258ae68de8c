"""A control plane in a process of its own, so that its speed is not that of the fakes that load it.

    plane = PlaneApart(folder)
    plane.start()                       fakes and callers work in this process, as with ControlPlane
    plane.memory_mib()                  of the server's process
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod

from phalanx.config import Config
from phalanx.serve import collect_by_the_clock
from tests.harness.control_plane import LOCAL, SERVICE, ControlPlane, message_factory


class PlaneApart(ControlPlane):
    """`server` is not here; what fakes and callers need of a control plane is."""

    def __init__(self, folder: Path, config: Config | None = None) -> None:
        super().__init__(folder, config)
        self.process: subprocess.Popen[str] | None = None
        self.started_s = 0.0        # how long the last start took, from the process's beginning until it serves

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config.save(self.paths.config)
        if self._thread is None:
            started = threading.Event()
            self.loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
            self._thread.start()
            started.wait()
        began = time.monotonic()
        command = [sys.executable, "-m", "tests.harness.apart", str(self.folder), str(self.port), json.dumps(asdict(self.config))]
        log = (self.folder / "server.log").open("a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=Path(__file__).parents[2])
        log.close()
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "serving\n", (self.folder / "server.log").read_text()
        self.started_s = time.monotonic() - began

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        if self._thread is None:
            return
        self._end(signal.SIGTERM)
        self.call(self._cancel_all)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self._thread = None

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=10) if others else None

    def memory_mib(self) -> float:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024

    def cpu_s(self) -> float:
        """What the server's process has used since it began."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.communicate()


class Client:
    """One client with one connection, in the plane's loop."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._channel = Channel(LOCAL, plane.port)
        self._metadata = {"x-modal-client-version": "1.6.4", "x-modal-client-type": "1", "x-modal-token-id": plane.config.token_id,
                          "x-modal-token-secret": plane.config.token_secret}

    async def ask(self, name: str, request: Any, key: str = "") -> Any:
        response = message_factory.GetMessageClass(SERVICE.methods_by_name[name].output_type)
        method = UnaryUnaryMethod(self._channel, f"/modal.client.ModalClient/{name}", type(request), response)
        return await method(request, metadata=self._metadata | ({"x-idempotency-key": key} if key else {}), timeout=120)

    def close(self) -> None:
        self._channel.close()


def main() -> None:
    folder, port, config = Path(sys.argv[1]), int(sys.argv[2]), Config(**json.loads(sys.argv[3]))
    plane = ControlPlane(folder, config)
    plane.port = port
    plane.start()
    plane.server.end_process = lambda: os._exit(70)
    asyncio.run_coroutine_threadsafe(collect_by_the_clock(), plane.loop)    # as in the server's own process
    print("serving", flush=True)
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    end.wait()
    with contextlib.suppress(Exception):
        plane.stop()
    for bug in plane.bugs:
        print(bug, file=sys.stderr)


if __name__ == "__main__":
    main()
