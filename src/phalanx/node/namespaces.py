"""The few system calls Python 3.11 has no name for. stdlib only: the launcher loads it once for all shims."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

NEWNS, NEWNET, NEWUSER, NEWUTS, NEWIPC = 0x00020000, 0x40000000, 0x10000000, 0x04000000, 0x08000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE, MS_BIND, MS_REMOUNT = 1, 2, 4, 0x4000, 1 << 18, 0x1000, 32
_SET_CHILD_SUBREAPER = 36
_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int = 0) -> None:
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None)
    _check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), _DETACH), f"umount {target}")


def become_subreaper() -> None:
    """Orphans of this process's descendants become its children, instead of init's."""
    prctl(_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def private_mounts() -> None:
    """A mount namespace of our own: what is mounted here is seen by nobody else and vanishes with its last process."""
    unshare(NEWNS)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def new_network() -> int:
    """A network namespace without a name, alive as long as the returned descriptor or a process in it."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(NEWNET)
        made = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        setns(here, NEWNET)
        return made
    finally:
        os.close(here)


@contextmanager
def inside_network(fd: int) -> Iterator[None]:
    """Sockets and processes made in this block belong to that network namespace. For single-threaded processes."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(fd, NEWNET)
        try:
            yield
        finally:
            setns(here, NEWNET)
    finally:
        os.close(here)


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
