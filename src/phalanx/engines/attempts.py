"""What the machine allows, tried by doing it in a forked child that leaves nothing behind. Sysctls only explain a refusal."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
LIMIT_S = 10


def user_namespace() -> str | None:
    """One user namespace with our own uid as its root, and all the others inside. None, or why not."""
    return _in_child(_enter_user_namespace) or None


def user_namespace_with_proc() -> str | None:
    """Whether a process namespace in it can have its own /proc; where /proc is masked (in a container), it can't."""
    return _in_child(lambda: _mount_proc(_enter_user_namespace))


def root_namespaces() -> str | None:
    """The namespaces of a full container, as real root, with a /proc of its own."""
    return _in_child(lambda: _mount_proc(_enter_root_namespaces))


def overlay(as_root: bool) -> str | None:
    """An overlay over /usr with its upper on a tmpfs; lowerdir=/ itself works as root only (inherited submounts are locked)."""
    enter = _enter_root_namespaces if as_root else _enter_user_namespace
    folder = tempfile.mkdtemp(prefix="phalanx-doctor-")
    try:
        return _in_child(lambda: _mount_overlay(enter, folder, "/" if as_root else "/usr"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def bridge_and_nft(as_root: bool) -> tuple[str | None, str | None]:
    """A bridge with a veth pair, and an nftables rule, in a network namespace of their own: (bridge, nft), each None or why not."""
    enter = _enter_root_namespaces if as_root else _enter_user_namespace
    bridge = ("ip link add br9 type bridge && ip link add v9 type veth peer name v9p && ip link set v9 master br9"
              " && ip -6 addr add fdaa::1/64 dev br9")
    nft = "nft add table inet t && nft add chain inet t c '{ type filter hook forward priority 0 ; }'"
    return _in_child(lambda: _sh(enter, bridge)), _in_child(lambda: _sh(enter, nft))


def cgroup_v2_delegated(folder: Path) -> str | None:
    """May we make groups with a memory limit below this folder? None, or why not."""
    try:
        if "memory" not in (folder / "cgroup.controllers").read_text().split():
            return f"{folder} has no memory controller"
        for name in ("cgroup.procs", "cgroup.subtree_control"):
            if not os.access(folder / name, os.W_OK):
                return f"{folder / name} is not writable"
    except OSError as error:
        return _spell(error)
    return _makes_group(folder)


def cgroup_v1_writable() -> str | None:
    """May we make groups in the memory hierarchy of version 1?"""
    return _makes_group(Path("/sys/fs/cgroup/memory"))


def _makes_group(folder: Path) -> str | None:
    group = folder / f"phalanx-doctor-{os.getpid()}"
    try:
        group.mkdir()
        group.rmdir()
    except OSError as error:
        return _spell(error)
    return None


# ---------------------------------------------------------------- in the child

def _in_child(attempt: Callable[[], None]) -> str | None:
    """Run it in a forked child; None if it returned, else the error as a sentence."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_child(attempt, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if said:
        return said
    return None if status == 0 else f"the attempt ended with status {status}"


def _be_the_child(attempt: Callable[[], None], writing: int) -> None:
    code = 1
    try:
        signal.alarm(LIMIT_S)
        attempt()
        code = 0
    except OSError as error:
        os.write(writing, _spell(error).encode())
    finally:
        os._exit(code)


def _enter_root_namespaces() -> None:
    _unshare(NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)


def _enter_user_namespace() -> None:
    uid, gid = os.geteuid(), os.getegid()
    _unshare(NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    _enter_root_namespaces()


def _mount_proc(enter: Callable[[], None]) -> None:
    enter()
    if os.fork() == 0:      # only a child is in the new process namespace
        try:
            _mount("proc", "/proc", "proc", 0)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
    _, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise OSError(code, f"mount /proc: {os.strerror(code)}")


def _mount_overlay(enter: Callable[[], None], folder: str, lower: str) -> None:
    enter()
    _mount("tmpfs", folder, "tmpfs", 0)
    for name in ("upper", "work", "merged"):
        os.mkdir(f"{folder}/{name}")
    _mount("overlay", f"{folder}/merged", "overlay", 0, f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work")
    Path(f"{folder}/merged/phalanx-doctor").touch()


def _sh(enter: Callable[[], None], script: str) -> None:
    enter()
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, env={"PATH": path})
    if said.returncode:
        raise OSError(said.returncode, said.stderr.strip().splitlines()[0] if said.stderr.strip() else "failed")


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        errno = ctypes.get_errno()
        raise OSError(errno, f"unshare: {os.strerror(errno)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [text.encode() if text is not None else None for text in (source, target, kind)]
    if libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() if data is not None else None):
        errno = ctypes.get_errno()
        raise OSError(errno, f"mount {kind or ''} at {target}: {os.strerror(errno)}")


def _spell(error: OSError) -> str:
    return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else "")
