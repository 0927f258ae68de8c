"""A folder in which every look at a file hangs in the kernel, and no signal ends whoever looks: a disk that does not answer, for real.

It is a FUSE file system whose server takes the question and keeps silent: the kernel waits for the answer uninterruptibly. When the
server's descriptor is closed, by `let_go` or by the end of this process, whatever happens, the kernel gives up, and SIGKILL comes through.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from phalanx.node import namespaces

DEVICE = "/dev/fuse"
_HEADER = struct.Struct("<IIQQIIII")        # of a question: length, opcode, number, node, uid, gid, pid, padding
_ANSWER = struct.Struct("<IiQ")             # length, error, number
_INIT, _GETATTR = 26, 3
_BIG = 1 << 17


def why_not() -> str:
    """Why this machine can't have one, or nothing."""
    if os.geteuid() != 0:
        return "mounting a file system that hangs needs root"
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"this kernel has no file system that can hang: {DEVICE}: {error.strerror}"
    return ""


class StuckFolder:
    """At `path` as process `pid` sees it (its mount namespace), or as we do."""

    def __init__(self, path: str, pid: int = 0) -> None:
        self.path, self.pid = path, pid
        self.asked = threading.Event()      # somebody hangs
        self._device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        self._wake, self._waker = os.pipe()
        self._inside(self._mount)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def let_go(self) -> None:
        """The disk is gone: whoever hangs gets an error, or the SIGKILL that waits for it."""
        if self._device < 0:
            return
        with contextlib.suppress(OSError, AssertionError):      # its process may be gone, and the mount with it
            self._inside(lambda: namespaces.unmount(self.path))
        os.close(self._waker)
        self._thread.join()         # the kernel holds a descriptor that is being read from
        os.close(self._wake)
        device, self._device = self._device, -1
        os.close(device)

    def _mount(self) -> None:
        Path(self.path).mkdir()
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        namespaces.mount("stuck", self.path, "fuse", namespaces.MS_NOSUID | namespaces.MS_NODEV, options)

    def _inside(self, work: Callable[[], None]) -> None:
        """A mount namespace is entered by processes with one thread only: a fork."""
        if not self.pid:
            work()
            return
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                entered = os.open(f"/proc/{self.pid}/ns/mnt", os.O_RDONLY)
                namespaces.setns(entered, namespaces.NEWNS)
                work()
                code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0, f"nothing could be mounted at {self.path} in process {self.pid}"

    def _serve(self) -> None:
        """The greeting and the folder itself are answered; what is asked of files in it is not."""
        with contextlib.suppress(OSError):      # unmounted, or closed
            while self._wake not in select.select([self._device, self._wake], [], [])[0]:
                question = os.read(self._device, _BIG)
                _, opcode, number, *_ = _HEADER.unpack_from(question)
                if opcode == _INIT:
                    self._answer(number, struct.pack("<IIIIHHIIHHI28x", 7, 19, 65536, 0, 0, 0, 65536, 1, 0, 0, 0))
                elif opcode == _GETATTR:
                    attributes = struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
                    self._answer(number, struct.pack("<QII", 1, 0, 0) + attributes)
                else:
                    self.asked.set()

    def _answer(self, number: int, body: bytes) -> None:
        os.write(self._device, _ANSWER.pack(_ANSWER.size + len(body), 0, number) + body)
