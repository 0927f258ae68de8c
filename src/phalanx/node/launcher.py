"""A tiny process that forks shims: it has everything they need loaded, so that one starts in 2 ms. stdlib only.

It lives in the fleet's own namespaces (rootless: the one user namespace of all containers; as root: the machine's), survives the agent,
and forks once for each request, a JSON line with a "task": shim, sweep, strays, stray, try, bridge, unbridge, uplink; hello and quit
it does itself. The child answers on the same connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any

# Loaded here, once, for every shim that is forked later.
from . import bridge, oci, process, programs, runtime, shim, strays, trial, zygote  # noqa: F401

VERSION = 1


def main(path: str, version: str) -> None:
    """Serve until asked to quit. `version` is the agent's: it replaces a launcher of another one."""
    with contextlib.suppress(PermissionError):      # we lead a session already
        os.setsid()
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)   # whoever started us with & has SIGINT ignored, and children would inherit that
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    draft = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(draft)
    os.chmod(draft, 0o600)
    listener.listen(256)
    os.replace(draft, path)     # whoever sees the socket can connect
    while True:
        connection, _ = listener.accept()
        with connection:
            request = _request(connection)
            if request.get("task") == "hello":
                _answer(connection, {"version": version, "pid": os.getpid()})
            elif request.get("task") == "quit":
                os.unlink(path)
                _answer(connection, {})
                return
            elif os.fork() == 0:
                listener.close()
                _child(connection, request)


def _child(connection: socket.socket, request: dict[str, Any]) -> None:
    """Do one task in a process of its own and never come back."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _do(connection, request)
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            _answer(connection, {"failed": f"{type(error).__name__}: {error}"})
        with contextlib.suppress(BaseException):
            shim.log_crash()
    finally:
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        os._exit(code)


def _do(connection: socket.socket, request: dict[str, Any]) -> None:
    match request.get("task"):
        case "shim":
            def report(message: dict[str, Any]) -> None:
                _answer(connection, {**message, "pid": os.getpid()})
                connection.close()

            shim.run(request["folder"], report)
        case "sweep":
            _answer(connection, {"remains": shim.sweep(request["folder"], request.get("patience_s", runtime.PATIENCE_SECONDS))})
        case "strays":
            _answer(connection, {"remains": strays.sweep(request["prefix"], request["kept"])})
        case "stray":
            _answer(connection, {"remains": strays.remove(request["name"], request["patience_s"])})
        case "bridge":
            _answer(connection, bridge.make(**request["bridge"]))
        case "unbridge":
            bridge.remove(request["name"])
            _answer(connection, {})
        case "uplink":
            _answer(connection, {"route": programs.run(["ip", "-4", "route", "show", "default"], may_fail=True)})
        case "try":
            trial.run(request["trial"])
            _answer(connection, {})
        case other:
            _answer(connection, {"failed": f"the launcher knows no task {other!r}"})


def _request(connection: socket.socket) -> dict[str, Any]:
    received = b""
    connection.settimeout(5)
    with contextlib.suppress(OSError):
        while not received.endswith(b"\n"):
            data = connection.recv(65536)
            if not data:
                return {}
            received += data
    connection.settimeout(None)
    try:
        return json.loads(received)
    except ValueError:
        return {}


def _answer(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")
