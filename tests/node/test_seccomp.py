"""What a container may not ask of the kernel, whether its process was started by the runtime or forked from a zygote."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from phalanx.node import seccomp

from .test_container import on_crun
from .test_zygote import SETTINGS, forked, said, started, was_forked

CHECKS = """
import ctypes, errno, json, multiprocessing, os, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = REFUSED
NEWUSER, SIGCHLD = 0x10000000, 17

def asked(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(number, *(ctypes.c_long(a) for a in arguments))
    return errno.errorcode.get(ctypes.get_errno(), "done")

def child():
    os._exit(3)

if __name__ == "__main__":
    clone, clone3 = ((56, 435), (220, 435))[os.uname().machine == "aarch64"]
    said = {name: asked(number, 0, 0, 0, 0, 0) for name, number in NUMBERS.items()}
    said["clone with a namespace"] = asked(clone, NEWUSER | SIGCHLD, 0, 0, 0, 0)
    said["clone3"] = asked(clone3, 0, 0)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start(); process.join()
    threads = [threading.Thread(target=said.setdefault, args=("thread", "ran"))]
    for thread in threads: thread.start(); thread.join()
    said["process"] = process.exitcode
    said["program"] = subprocess.run(["/bin/echo", "hello"], capture_output=True, text=True).stdout
    said["ptrace"] = [libc.ptrace(0, 0, 0, 0)]
    said["shared"] = [os.memfd_create("x") > 0, libc.syscall(239 if os.uname().machine == "x86_64" else 236, 0, 0, 0, 0, 0)]
    print(json.dumps(said))
    print(json.dumps([]))
    sys.exit(7)
"""


@on_crun
def test_dangerous_calls_are_refused_and_what_programs_need_works(agent, server):
    at = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
    numbers = {name: pair[at] for name, pair in seccomp._REFUSED.items() if pair[at] is not None}
    runner = CHECKS.replace("REFUSED", repr(numbers)).encode()
    server.layers["checks"] = [("/pkg/modal/__init__.py", b""), ("/pkg/modal/settings.py", SETTINGS),
                               ("/pkg/modal/_container_entrypoint.py", runner)]
    started(server, 1, layer_ids=["checks", "program"])
    assert not was_forked(agent, 1)
    for number in (1, forked(agent, server, 100, layer_ids=["checks", "program"])):
        found, _ = said(server, number)
        assert {name for name in numbers if found[name] != "EPERM"} == set()
        assert (found["clone with a namespace"], found["clone3"]) == ("EPERM", "ENOSYS")
        assert (found["thread"], found["process"], found["program"]) == ("ran", 3, "hello\n")
        assert (found["ptrace"], found["shared"]) == ([0], [True, 0])


def test_the_program_for_the_kernel_says_what_the_profile_says() -> None:
    if seccomp.profile() is None:
        pytest.skip("this kernel has no such filters")
    at = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
    audit = (0xC000003E, 0xC00000B7)[at]
    refused = {pair[at] for pair in seccomp._REFUSED.values()}
    for number in range(600):
        if number in (seccomp._CLONE[at], seccomp._CLONE3[at]):
            continue
        assert answer(number, audit) == (errno.EPERM if number in refused else None), number
    assert answer(seccomp._CLONE3[at], audit) == errno.ENOSYS
    assert answer(seccomp._CLONE[at], audit, 0x01200011) is None        # fork
    assert answer(seccomp._CLONE[at], audit, 0x003D0F00) is None        # a thread
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(seccomp._CLONE[at], audit, bit | 17) == errno.EPERM
    assert answer(0, 0x40000003) == errno.ENOSYS                        # a 32-bit program
    assert {name for rule in seccomp.profile()["syscalls"] for name in rule["names"]} == {*seccomp._REFUSED, "clone", "clone3"}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the headers here are of another machine")
def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers here")
    known = {line.split()[1].removeprefix("__NR_"): int(line.split()[2]) for line in header.read_text().splitlines() if "__NR_" in line}
    wrong = {name: (mine, known[name]) for name, (mine, _) in seccomp._REFUSED.items() if name in known and known[name] != mine}
    assert not wrong


def answer(number: int, audit: int, first_argument: int = 0) -> int | None:
    """What the kernel would do with a call: the errno, or None for going on."""
    data = struct.pack("<IIQQQQQQQ", number, audit, 0, first_argument, 0, 0, 0, 0, 0)
    code = [struct.unpack_from("=HBBI", seccomp.program(), at) for at in range(0, len(seccomp.program()), 8)]
    accumulator, at = 0, 0
    while True:
        kind, yes, no, value = code[at]
        at += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif kind == 0x06:
            return None if value == 0x7FFF0000 else value & 0xFFFF
        else:
            true = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[kind]
            at += yes if true else no
