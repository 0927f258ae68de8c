"""A zygote as a container of its own: it has the container's view of the files, no network, and a shim that keeps it. stdlib only.

Its process is not in the container's PID namespace and keeps this user's privileges: it must enter other containers. It runs nothing but
imports of the client's package, from the same layers as the containers that are forked from it, and dies with its shim.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from . import namespaces
from .oci import OciRuntime
from .process import ProcessRuntime
from .spec import Spec

_PROGRAM = Path(__file__).with_name("zygote_inside.py")
_READ_PROGRAM = "exec(compile(open(3).read(), 'zygote', 'exec'), {'__name__': 'zygote'})"
_SET_PARENT_DEATH_SIGNAL = 1


class _Interpreter:
    """What both kinds of zygote are: one process, which answers no signal and whose forks are other containers'."""

    main = 0

    def signal(self, number: int) -> None:
        _kill(self.main)

    def lingering(self) -> bool:
        return False


class OciZygote(_Interpreter, OciRuntime):
    """`Spec.serves` is its listening socket's path. The container holds `sleep` alone."""

    def prepare(self) -> None:
        self.namespace = namespaces.new_network()       # empty: nothing to reach, not even loopback
        super().prepare()

    def start(self, stdout: int, stderr: int) -> int:
        first = os.pidfd_open(self.first)
        try:
            kinds = namespaces.NEWNS | namespaces.NEWUTS | namespaces.NEWIPC | namespaces.NEWNET
            self.main = _begin(self.spec, stdout, stderr, lambda: namespaces.setns(first, kinds))
        finally:
            os.close(first)
        return self.main

    def kill(self) -> bool:
        """Not what was forked from it: those are other containers'."""
        _kill(self.main)
        return super().kill()


class ProcessZygote(_Interpreter, ProcessRuntime):
    def start(self, stdout: int, stderr: int) -> int:
        self.main = _begin(self.spec, stdout, stderr, lambda: None)
        return self.main

    def kill(self) -> bool:
        _kill(self.main)
        return True

    def members(self) -> set[int]:
        return {self.main} if self.main else set()


def _begin(spec: Spec, stdout: int, stderr: int, enter: Callable[[], object]) -> int:
    """Start the interpreter with the program on descriptor 3 and its listening socket on 4."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(spec.serves)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, _PROGRAM.open("rb") as program:
        listener.bind(spec.serves)
        os.chmod(spec.serves, 0o600)
        listener.listen(256)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                _become(spec, {0: os.open(os.devnull, os.O_RDONLY), 1: stdout, 2: stderr, 3: program.fileno(), 4: listener.fileno()}, enter)
            os._exit(127)
    return pid


def _become(spec: Spec, descriptors: dict[int, int], enter: Callable[[], object]) -> None:
    """In the forked process: the interpreter, or its error on the zygote's own output."""
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        namespaces.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        enter()
        os.chdir(spec.working_folder)
        high = {target: fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 64) for target, source in descriptors.items()}
        for target, source in high.items():
            os.dup2(source, target)
        os.closerange(5, 64)
        os.execve(spec.command[0], [spec.command[0], "-u", "-c", _READ_PROGRAM], spec.environment)
    except BaseException as error:
        os.write(descriptors[2], f"the zygote can't be started: {error}\n".encode())


def _kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
