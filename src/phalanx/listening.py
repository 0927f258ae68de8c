"""Listening sockets: made by the supervisor, which outlives the front, or by a front that was started alone."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

BACKLOG = 4096      # what connects while nobody accepts waits here; the kernel cuts it to net.core.somaxconn


def parse_address(listen: str) -> tuple[str, int]:
    """"127.0.0.1:8900" or "[::1]:8900". Raises ValueError with a sentence."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535 or not host:
        raise ValueError(f"{listen!r} is no address to listen at: give HOST:PORT, like 127.0.0.1:8900 or [::1]:8900")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_tcp(listen: str) -> socket.socket:
    """Raises OSError or ValueError with a sentence."""
    host, port = parse_address(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(error.errno, f"{listen} is in use: stop what listens there, or choose another with --listen") from error
        raise OSError(error.errno, f"can't listen at {listen}: {error.strerror or error}") from error
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening


def listen_unix(path: Path) -> socket.socket:
    """For this user only. Whoever calls makes sure that nobody else listens there: a file of that name is taken for a dead one's."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(mask)
    listening.listen(BACKLOG)
    listening.setblocking(False)
    return listening


def address_of(listening: socket.socket) -> str:
    """HOST:PORT, with the port that it really has."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def adopt(fd: int) -> socket.socket:
    """A listening socket that our parent made and let us inherit. Our own children do not."""
    listening = socket.socket(fileno=fd)
    listening.set_inheritable(False)
    listening.setblocking(False)
    return listening
