"""One container as the agent sees it: prepares it, speaks with its shim, ships its log, reports its end until the server has it all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.protocol import agent_pb2

from . import machine, spool
from .control import VERSION
from .launching import Launcher, LaunchFailed
from .runtime import LAST_PATIENCE_SECONDS
from .saying import say, say_failure
from .spec import Exit, Spec

_BATCH_BYTES = 256 << 10
_WINDOW_BYTES = 8 << 20      # sent and not yet acknowledged
_MIB = 1 << 20
_DISMISS_SECONDS = 40.0      # a shim may try for 20 s to kill what can't be killed

Send = Callable[[agent_pb2.FromAgent], None]


SHIM_GONE = "the container's shim ended without leaving an exit status: killed, or the machine restarted"


class OtherVersion(ConnectionError):
    """The shim was started by a phalanx whose control protocol is not ours."""


class Container:
    """`send` drops what is said while there is no session: `report_again` tells a new one how things stand."""

    def __init__(self, spec: Spec, launcher: Launcher, send: Send) -> None:
        self.spec, self.launcher, self.send = spec, launcher, send
        self.phase = "preparing"          # then prepared, running, ended, released
        self.started_ms = 0
        self.until_ms = self.reached_ms = 0     # its lease, as the shim knows it; 0: none
        self.ended: Exit | None = None
        self.remains = ""
        self.fenced = False               # we have told it to stop, for its lease is over
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._pumping: asyncio.Task[None] | None = None
        self.over = asyncio.Event()       # its processes have ended
        self._wake = asyncio.Event()
        self._released = asyncio.Event()
        self._sent = self._acknowledged = (spool.segments(spec.spool) or [0])[0]
        self._checks: dict[int, asyncio.Future[list[str]]] = {}
        self._exit_told = False

    @property
    def key(self) -> tuple[int, int]:
        return self.spec.assignment, self.spec.rank

    # ---------------------------------------------------------------- life

    async def launch(self) -> None:
        """Have a shim prepare it. LaunchFailed says why not; nothing is left then."""
        answer = await self.launcher.ask(task="shim", folder=self.spec.folder)
        if "refused" in answer:
            raise LaunchFailed(answer["refused"])
        await self._connect()

    async def adopt(self) -> None:
        """Take over what an earlier agent left: a living shim, or the remains of a dead one, which are cleaned up."""
        try:
            await self._connect()
        except OtherVersion as other:
            say(f"{self.spec.task_id} is stopped: {other}")
            await self._bury(str(other))
        except OSError:
            await self._bury()

    def start(self) -> None:
        if self.phase == "prepared":
            self._tell(do="start")
        else:
            self.report_again()

    def stop(self, number: int, grace_ms: int, fenced: str = "") -> None:
        """Signal `number`, and SIGKILL after the grace. `fenced`: why it must not run on, where that is for its lease."""
        self._tell(do="stop", signal=number, grace_ms=grace_ms, fenced=fenced)

    def lease(self, until_ms: int, reached_ms: int) -> None:
        """It may run until then without another word from us; 0: for ever."""
        self.until_ms, self.reached_ms = until_ms, reached_ms
        self._tell(do="lease", until_ms=until_ms, reached_ms=reached_ms)

    async def check(self, addresses: list[str]) -> list[str]:
        """The addresses that do not answer from inside its network."""
        if self._writer is None:
            return addresses
        number = len(self._checks)
        self._checks[number] = asyncio.get_running_loop().create_future()
        self._tell(do="check", id=number, addresses=addresses)
        return await self._checks[number]

    async def release(self) -> str:
        """Remove everything of it from the machine; answers what remains, or nothing."""
        if self._pumping is not None:
            self._pumping.cancel()
        if self._writer is not None:
            self._tell(do="release")
            await self._released.wait()
        self.phase = "released"
        if not self.remains:    # else it is tried again, by the next agent too, which knows by the folder which node it is about
            await asyncio.to_thread(shutil.rmtree, self.spec.folder, ignore_errors=True)
        await asyncio.to_thread(shutil.rmtree, self.spec.api_folder, ignore_errors=True)
        return self.remains

    async def look_again(self) -> str:
        """Try once more to remove what remained of it; answers what still does, or nothing."""
        if self._writer is not None:
            return self.remains or "its shim has not released it yet"
        try:
            self.remains = (await self.launcher.ask(task="sweep", folder=self.spec.folder, patience_s=LAST_PATIENCE_SECONDS))["remains"]
        except LaunchFailed as failure:
            self.remains = str(failure)
        return self.remains

    # ---------------------------------------------------------------- what the server hears

    def report_again(self) -> None:
        """How things stand, for a new session or a repeated command; the log from the last acknowledged byte on."""
        if self.phase == "prepared":
            self.send(agent_pb2.FromAgent(prepared=agent_pb2.Prepared(
                assignment=self.spec.assignment, rank=self.spec.rank, ipv6=self.spec.ipv6, ipv4=self.spec.ipv4,
                http_address=self.spec.http_address)))
        if self.started_ms:
            self.send(agent_pb2.FromAgent(started=agent_pb2.Started(
                assignment=self.spec.assignment, rank=self.spec.rank, boottime_ms=self.started_ms)))

    def resume_log(self) -> None:
        """A new session: send again from the last acknowledged byte."""
        self._sent = self._acknowledged
        self._exit_told = False
        self.start_pump()

    def start_pump(self) -> None:
        if self._pumping is None:
            self._pumping = asyncio.create_task(self._pump())
            self._pumping.add_done_callback(say_failure)
        self._wake.set()

    def acknowledge(self, offset: int) -> None:
        """The server has everything before `offset` for good."""
        if offset <= self._acknowledged:
            return
        self._acknowledged = offset
        self._wake.set()
        self._tell(do="acknowledge", offset=offset)

    def send_log(self) -> None:
        """What is in the spool now, without waiting for the pump's turn: not more than a window, as there."""
        while self._sent - self._acknowledged < _WINDOW_BYTES and self._send_batch():
            pass

    async def _pump(self) -> None:
        """Ship records in order, a window ahead of the acknowledgements; then the exit."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._sent - self._acknowledged < _WINDOW_BYTES and self._send_batch():
                self._wake.set()
                await asyncio.sleep(0)      # other containers' turn
                continue
            if self.ended is not None and not self._exit_told and self._sent >= self.ended.log_end:
                self._exit_told = True
                self.send(agent_pb2.FromAgent(exited=self._exited(self.ended)))

    def _send_batch(self) -> bool:
        records, size, first, end = [], 0, self._sent, self._sent
        for record in spool.read(self.spec.spool, self._sent):
            if not records:
                first = record.offset
            records.append(agent_pb2.LogRecord(stream=record.stream, time_ns=record.time_ns, data=record.data))
            size, end = size + len(record.data), record.end
            if size >= _BATCH_BYTES:
                break
        if not records:
            if self.ended is not None:
                self._sent = max(self._sent, self.ended.log_end)
            return False
        self._sent = end
        self.send(agent_pb2.FromAgent(logs=agent_pb2.Logs(
            assignment=self.spec.assignment, rank=self.spec.rank, offset=first, records=records, end_offset=end)))
        return True

    def _exited(self, ended: Exit) -> agent_pb2.Exited:
        return agent_pb2.Exited(
            assignment=self.spec.assignment, rank=self.spec.rank, code=ended.code, signal=ended.signal, oom_killed=ended.oom_killed,
            memory_limit_mib=ended.memory_limit_bytes // _MIB, memory_peak_mib=ended.memory_peak_bytes // _MIB,
            log_end_offset=ended.log_end, boottime_ms=ended.boottime_ms, sentence=ended.sentence, never_started=ended.never_started,
            unseen=ended.unseen, fenced=ended.fenced, unkillable=ended.unkillable, stopped=ended.stopped)

    # ---------------------------------------------------------------- the shim

    async def _connect(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self.spec.control_socket, limit=1 << 20)
        hello = json.loads(await reader.readline())
        if hello.get("version") != VERSION:
            raise OtherVersion(f"its shim speaks version {hello.get('version')} of the control protocol and the agent version {VERSION}: "
                               "the phalanx that started it can't be followed by this one while containers run")
        self.phase = hello["phase"]
        self.started_ms = hello["boottime_ms"]
        self.until_ms, self.reached_ms = hello.get("until_ms", 0), hello.get("reached_ms", 0)
        self.ended = Exit(**hello["exit"]) if hello["exit"] else None
        self._listening = asyncio.create_task(self._listen(reader))
        self._listening.add_done_callback(say_failure)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self._hear(json.loads(line))
        self._writer = None
        for waiting in self._checks.values():
            if not waiting.done():
                waiting.set_result([])
        if not self._released.is_set():
            await self._bury()
            self.remains = self.remains or ""
            self._released.set()

    def _hear(self, message: dict[str, Any]) -> None:
        match message["say"]:
            case "started":
                self.phase, self.started_ms = "running", message["boottime_ms"]
                self.report_again()
            case "logs":
                self._wake.set()
            case "ended":
                self.phase, self.ended = "ended", Exit(**message["exit"])
                self.over.set()
                self._wake.set()
            case "checked":
                waiting = self._checks.get(message["id"])
                if waiting is not None and not waiting.done():
                    waiting.set_result(message["silent"])
            case "released":
                self.remains = message["remains"]
                self._released.set()

    async def _bury(self, sentence: str = SHIM_GONE) -> None:
        """The shim is gone without a word, or talks past us: clean up after it, keep what it had written."""
        try:
            self.remains = (await self.launcher.ask(task="sweep", folder=self.spec.folder))["remains"]
        except LaunchFailed as failure:
            self.remains = str(failure)
        ended = Exit.load(self.spec.folder)
        if ended is None:
            ended = Exit(
                code=255, log_end=spool.end_offset(self.spec.spool), boottime_ms=machine.boottime_ms(), unseen=True,
                never_started=self.phase in ("preparing", "prepared"),
                sentence=sentence)
            ended.save(self.spec.folder)
        self.phase, self.ended = "ended", ended
        self.over.set()
        self._wake.set()

    def _tell(self, **message: Any) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")


async def dismiss(control_socket: Path) -> None:
    """Have a shim of which nothing else is known kill and remove its container. One that fails to is killed, and a socket at which nobody
    answers removed: what they leave has names by which it is found."""
    shim = 0
    try:
        async with asyncio.timeout(_DISMISS_SECONDS):
            reader, writer = await asyncio.open_unix_connection(str(control_socket), limit=1 << 20)
            connection = writer.get_extra_info("socket")
            shim = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            writer.write(b'{"do": "release"}\n')
            while await reader.readline():
                pass
            writer.close()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(shim, signal.SIGKILL)
    except OSError:
        pass
    control_socket.unlink(missing_ok=True)


def left_behind(folder: Path) -> list[Path]:
    """Folders of containers that an earlier agent had."""
    return sorted(path.parent for path in folder.glob("*/spec.json"))
