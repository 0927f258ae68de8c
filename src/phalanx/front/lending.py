"""The front itself: owns the sockets, lends them to one server at a time, answers while nobody has them."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import struct
import time
from typing import Any, TextIO

from phalanx.front.away import AwayAnswers
from phalanx.front.callers import Caller
from phalanx.front.doors import Door
from phalanx.front.loan import VERSION
from phalanx.listening import address_of, listen_unix
from phalanx.paths import Paths

RELEASE_S = 2.0


class FrontRunning(Exception):
    """This state folder has a front already."""


class Front:
    """All sockets of one state folder. `run()` ends after `stop()`."""

    def __init__(self, paths: Paths, public: socket.socket, tasks: socket.socket) -> None:
        self._paths = paths
        self._public = public
        self._tasks = tasks
        self._control = listen_unix(paths.front_socket)
        self.listen = address_of(public)
        self._holder: int | None = None        # the pid that has the sockets
        self._since = 0.0
        self._free = asyncio.Event()
        self._free.set()
        self._serving = False
        self._doors: list[Door] = []
        self._away: AwayAnswers | None = None
        self._stopped = asyncio.Event()
        self._controls: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    def stop(self) -> None:
        self._stopped.set()

    async def run(self) -> None:
        self._open()
        control = await asyncio.start_unix_server(self._on_control, sock=self._control, backlog=16)
        try:
            await self._stopped.wait()
        finally:
            control.close()
            for writer in self._controls.values():
                writer.close()
            await asyncio.gather(*self._controls)
            await self._shut()
            if self._away is not None:
                self._away.cut()
            self._paths.front_socket.unlink(missing_ok=True)

    def _open(self) -> None:
        """Answer ourselves."""
        if self._away is not None or self._stopped.is_set():
            return
        away = self._away = AwayAnswers()
        self._doors = [
            Door(self._public, lambda: Caller(away, through_shim=False)),
            Door(self._tasks, lambda: Caller(away, through_shim=True)),
        ]
        for door in self._doors:
            door.open()

    async def _shut(self) -> None:
        for door in self._doors:
            await door.shut()

    async def _send_over(self) -> None:
        """The server answers from here on."""
        away, self._away = self._away, None
        await self._shut()
        if away is not None:
            await away.leave()

    async def _on_control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._controls[task] = writer
        try:
            hello = json.loads(await reader.readline() or b"{}")
            await self._serve_control(hello, reader, writer)
        except (OSError, ValueError):
            pass        # whoever said this is no server
        finally:
            del self._controls[task]
            writer.close()

    async def _serve_control(self, hello: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if hello.get("version") != VERSION:
            said = hello.get("version")
            _say(writer, refused=f"the front speaks version {VERSION} of the loan and was asked in version {said}: "
                                 "`phalanx down` and `phalanx up` renew it")
        elif hello.get("ask") == "state":
            callers = self._away.callers() if self._away is not None else 0
            _say(writer, pid=os.getpid(), listen=self.listen, holder=self._holder, serving=self._serving, waiting=callers)
        elif not await self._is_free():
            held_s = time.monotonic() - self._since
            _say(writer, pid=self._holder, refused=f"process {self._holder} is this state's server and has had its sockets "
                                                   f"for {held_s:.0f} s: stop it first (`phalanx down`)")
        else:
            await self._lend(reader, writer)
        await writer.drain()

    async def _is_free(self) -> bool:
        """A server that follows at once upon its predecessor's end waits for the front to have seen that end."""
        try:
            await asyncio.wait_for(self._free.wait(), RELEASE_S)
        except TimeoutError:
            return False
        return self._holder is None     # another one that waited here may have been quicker

    async def _lend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("socket")
        self._holder = _peer_pid(peer)
        self._since = time.monotonic()
        self._free.clear()
        try:
            line = json.dumps({"version": VERSION, "lent": ["public", "tasks"], "listen": self.listen}).encode() + b"\n"
            fds = [self._public.fileno(), self._tasks.fileno()]
            with socket.socket(fileno=os.dup(peer.fileno())) as plain:     # asyncio's wrapper can't send descriptors
                socket.send_fds(plain, [line], fds)
            while said := await reader.readline():
                if json.loads(said).get("serving"):
                    self._serving = True
                    await self._send_over()
                    _say(writer, quiet=True)
        finally:
            self._holder, self._serving = None, False
            self._open()
            self._free.set()


def _say(writer: asyncio.StreamWriter, **words: Any) -> None:
    writer.write(json.dumps({"version": VERSION, **words}).encode() + b"\n")


def _peer_pid(peer: socket.socket) -> int:
    return struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def take_lock(paths: Paths) -> TextIO:
    """Held as long as this process lives: the sockets' files may be replaced by nobody else."""
    lock = (paths.run / "front.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise FrontRunning(f"{paths.state} has a running front already: `phalanx down` stops it") from error
    return lock
