"""The server's side of the loan: fetch the listening sockets from the front, and notice when the front is gone.

Wire format, version 1, over `Paths.front_socket`; one JSON object a line:

    server  {"version": 1, "pid": 4711}
    front   {"version": 1, "lent": ["public", "tasks"], "listen": "127.0.0.1:8900"}    with the descriptors, in this order
       or   {"version": 1, "refused": "a sentence", "pid": 4700}
    server  {"serving": true}
    front   {"quiet": true}          the front accepts no more and has sent its own callers over

The loan ends with the connection, however it ends. Anybody may ask {"version": 1, "ask": "state"} instead of borrowing.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
ANSWER_S = 10.0     # the front answers at once; only a stopped one doesn't


class FrontAbsent(Exception):
    """No front listens there."""


class LoanRefused(Exception):
    """The front keeps its sockets: another server has them, or it speaks another version. `pid` is the holder's, if known."""

    def __init__(self, sentence: str, pid: int | None = None) -> None:
        super().__init__(sentence)
        self.pid = pid


@dataclass
class Loan:
    """The two listening sockets, non-blocking, as long as the front lives. Say `serving()` before accepting from them."""

    public: socket.socket
    tasks: socket.socket
    listen: str
    lost: asyncio.Event = field(default_factory=asyncio.Event)      # the front is gone: no new caller will come here
    _writer: asyncio.StreamWriter | None = None
    _watch: asyncio.Task[None] | None = None
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)

    async def serving(self) -> None:
        """Tell the front that the server answers now. Until then the front keeps answering, so recovery may take its time."""
        assert self._writer is not None
        self._writer.write(b'{"serving": true}\n')
        await self._writer.drain()
        gone = asyncio.ensure_future(self.lost.wait())
        quiet = asyncio.ensure_future(self._quiet.wait())
        await asyncio.wait({gone, quiet}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        quiet.cancel()

    def give_back(self) -> None:
        """Stop accepting first; then the front takes over at once."""
        self.public.close()
        self.tasks.close()
        if self._watch is not None:
            self._watch.cancel()
        if self._writer is not None:
            self._writer.close()

    async def _watch_front(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                if json.loads(line).get("quiet"):
                    self._quiet.set()
        except (OSError, ValueError):
            pass
        self.lost.set()


async def borrow(front_socket: Path) -> Loan:
    """Get the sockets. Raises FrontAbsent or LoanRefused with a sentence for the user."""
    control, answer, fds = await asyncio.to_thread(_ask, front_socket, {"version": VERSION, "pid": os.getpid()})
    if "refused" in answer:
        control.close()
        raise LoanRefused(answer["refused"], answer.get("pid"))
    sockets = dict(zip(answer["lent"], (socket.socket(fileno=fd) for fd in fds), strict=True))
    for lent in sockets.values():
        lent.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=control)
    loan = Loan(public=sockets["public"], tasks=sockets["tasks"], listen=answer["listen"], _writer=writer)
    loan._watch = asyncio.create_task(loan._watch_front(reader))
    return loan


def ask_state(front_socket: Path) -> dict[str, Any]:
    """{"pid", "listen", "holder": the server's pid or None, "serving": bool, "waiting": connections held}. Blocking; FrontAbsent."""
    control, answer, _ = _ask(front_socket, {"version": VERSION, "ask": "state"})
    control.close()
    return answer


def _ask(front_socket: Path, hello: dict[str, Any]) -> tuple[socket.socket, dict[str, Any], list[int]]:
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.settimeout(ANSWER_S)
    try:
        control.connect(str(front_socket))
        control.sendall(json.dumps(hello).encode() + b"\n")
        line, fds = b"", []
        while not line.endswith(b"\n"):
            data, received, _, _ = socket.recv_fds(control, 4096, 8)
            for fd in received:
                os.set_inheritable(fd, False)      # a child that kept a listening socket would swallow callers
            fds += received
            if not data:
                raise FrontAbsent(f"the front at {front_socket} hung up")
            line += data
    except (FileNotFoundError, ConnectionRefusedError) as error:
        control.close()
        raise FrontAbsent(f"no front listens at {front_socket}: start it with `phalanx up`") from error
    except OSError as error:
        control.close()
        raise FrontAbsent(f"the front at {front_socket} does not answer: {error}") from error
    return control, json.loads(line), fds
