"""The shim's end of a zygote: have it fork this container's main process. stdlib only; zygote_inside.py is the other end."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import cgroups

_PATIENCE_SECONDS = 10.0


class NotForked(Exception):
    """Nothing of the user's ran: the runtime's own way is still open. The text says why."""


@dataclass
class Forked:
    """`waiter` is the process's parent, a fork of the zygote too, and lives as long as `status` is open, which tells four bytes of
    wait status. `lost`: the waiter ended before it told them."""

    pid: int
    waiter: int
    status: socket.socket
    lost: bool = False


def fork(zygote: str, request: dict[str, Any], stdout: int, stderr: int, first_process: int = 0, cgroup: str = "") -> Forked:
    """A process in the container of `first_process`, or a plain one, that runs when this returns. Raises NotForked."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.connect(zygote)
        with _open_container(first_process, cgroup) as container:
            body = json.dumps(request).encode()
            data = struct.pack("<I", len(body)) + body
            sent = socket.send_fds(connection, [data], [stdout, stderr, *container])
            connection.sendall(data[sent:])
        answer = json.loads(_line(connection) or b'{"failed": "the zygote broke off"}')
        if "failed" in answer:
            raise NotForked(answer["failed"])
        connection.sendall(b"g")        # from here on it is the container's process, and only one is ever started
    except (OSError, ValueError) as error:
        connection.close()
        raise NotForked(f"{type(error).__name__}: {error}") from error
    except NotForked:
        connection.close()
        raise
    connection.setblocking(False)
    return Forked(answer["pid"], answer["waiter"], connection)


def status_of(connection: socket.socket) -> int | None:
    """The wait status; None when the waiter ended without a word."""
    with contextlib.suppress(OSError):
        data = connection.recv(4)
        if len(data) == 4:
            return int(struct.unpack("<I", data)[0])
    return None


@contextmanager
def _open_container(first_process: int, cgroup: str) -> Iterator[list[int]]:
    """The first process's namespaces by its pidfd, and the files that put a process into its cgroups."""
    opened: list[int] = []
    try:
        if first_process:
            opened.append(os.pidfd_open(first_process))
        for folder in cgroups.folders(cgroup) if cgroup else ():
            opened.append(os.open(f"{folder}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        yield opened
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _line(connection: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        data = connection.recv(65536)
        if not data:
            return b""
        received += data
    return received
