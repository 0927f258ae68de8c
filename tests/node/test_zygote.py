"""A runner that was forked from a zygote: the same to the user's program as one that was started, and only where it can be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .conftest import RUNTIMES, AgentProcess

# Stands for the client: a runner that says all that a program can know of the process it runs in.
RUNNER = b"""
import asyncio, json, logging, os, queue, random, ssl, threading, uuid
import modal.settings

if __name__ == "__main__":
    import gc, resource, signal, sys, time

    def text(path):
        with open(path) as file:
            return file.read()

    status = dict(line.split(":", 1) for line in text("/proc/self/status").splitlines())
    main = sys.modules["__main__"]
    seen = {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "executable": sys.executable, "flags": str(sys.flags),
        "prefix": [sys.prefix, sys.exec_prefix], "modules": sorted(sys.modules), "main": sorted(vars(main)), "file": main.__file__,
        "spec": getattr(main.__spec__, "name", None), "environ": dict(os.environ), "cmdline": text("/proc/self/cmdline"),
        "proc_environ": sorted(text("/proc/self/environ").split("\\0")), "comm": text("/proc/self/comm"),
        "exe": os.readlink("/proc/self/exe"), "cwd": os.getcwd(), "root": os.readlink("/proc/self/root"), "umask": os.umask(0o22),
        "fds": sorted(os.listdir("/proc/self/fd"))[:3], "open": sum(os.path.exists(f"/proc/self/fd/{n}") for n in range(3, 256)),
        "streams": [os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in range(3)],
        "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through, sys.stdin.read()],
        "signals": {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
        "mask": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "status": {name: status.get(name) for name in (
            "SigBlk", "SigIgn", "SigCgt", "ShdPnd", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid", "Gid",
            "Groups", "Threads", "Umask", "TracerPid")},
        "ids": [os.getppid() == 0, os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "native_id": threading.main_thread().native_id == os.getpid(),
        "threads": [thread.name for thread in threading.enumerate()], "limits": {name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource) if name.startswith("RLIMIT")},
        "oom": text("/proc/self/oom_score_adj"), "nice": os.nice(0), "cgroup": text("/proc/self/cgroup"),
        "mounts": [line.split(" - ")[0].split()[4:6] for line in text("/proc/self/mountinfo").splitlines()],
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "mnt", "net", "uts", "ipc", "user", "cgroup")},
        "host": os.uname().nodename, "settings": modal.settings.HOME_FILE, "gc": [gc.isenabled(), gc.get_threshold()],
        "young": time.time() - logging._startTime < 5, "processes": sorted(int(n) for n in os.listdir("/proc") if n.isdigit()),
        "locale": __import__("locale").setlocale(6), "package": [hasattr(sys.modules["modal"], "_container_entrypoint")],
    }
    for number in range(3, 256):
        try:
            seen.setdefault("more", []).append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            pass
    print(json.dumps(seen))
    print(json.dumps([random.random(), str(uuid.uuid4()), os.getpid()]))
    sys.exit(7)
"""
SETTINGS = b'import os\nHOME_FILE = os.path.expanduser("~/.settings")\nos.environ.get("MODAL_LOGLEVEL")\n'
CLIENT = [("/pkg/modal/__init__.py", b""), ("/pkg/modal/settings.py", SETTINGS), ("/pkg/modal/_container_entrypoint.py", RUNNER)]
PROGRAM = [("/root/train.py", b"print('train')\n")]


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


def zygotes(agent: AgentProcess) -> dict[str, int]:
    """Socket → pid of each zygote that runs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            status = (folder / "status").read_text()
        except OSError:
            continue
        if b"'zygote', 'exec'" not in words:
            continue
        parent = Path("/proc", next(line.split()[1] for line in status.splitlines() if line.startswith("PPid")))
        try:
            keeper = [os.readlink(path) for path in (parent / "fd").iterdir()]
        except OSError:
            continue
        if any(str(agent.paths.node) in link for link in keeper):
            found[folder.name] = int(folder.name)
    return found


def runs(agent: AgentProcess, server: Any, assignment: int, **fields: Any) -> tuple[dict[str, Any], list[Any], bool]:
    """What a container said, and whether it was forked."""
    server.run(assignment, **{"layer_ids": ["client", "program"], **fields})
    spec = json.loads((agent.paths.node / f"containers/{assignment}-0/spec.json").read_text())
    trouble = (agent.paths.node / f"containers/{assignment}-0/shim.log").read_text()
    seen = server.finish(assignment)
    assert seen.exited[0].code == 7, seen.text().decode() + trouble
    first, second = seen.text(1).decode().splitlines()
    assert seen.released[0].remains == ""
    return json.loads(first), json.loads(second), bool(spec["zygote"]) and not trouble


def forked(agent: AgentProcess, server: Any, assignment: int, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The same, from a container that was forked: the first ones, while the zygote imports, are not."""
    for number in range(assignment, assignment + 100):
        seen, drawn, was_forked = runs(agent, server, number, **fields)
        if was_forked:
            return seen, drawn
    raise AssertionError("no container of a hundred was forked")


def test_a_program_cannot_tell_a_forked_runner_from_a_started_one(agent, server):
    server.layers |= {"client": CLIENT, "program": PROGRAM}
    environment = {"USERS_OWN": "naïve\nvalue", "PYTHONUNBUFFERED": "1"}
    started, drawn, was_forked = runs(agent, server, 1, environment=environment)
    assert not was_forked
    again, drawn_again = forked(agent, server, 100, environment=environment)
    _, drawn_last = forked(agent, server, 300, environment=environment)

    def plain(seen: dict[str, Any]) -> dict[str, Any]:
        """Without what differs between any two containers."""
        text = json.dumps(seen)
        task = seen["environ"]["MODAL_TASK_ID"].removeprefix("ta-")
        for word, other in ((task, "TASK"), (task.replace("-0", "-x-0"), "TASK")):
            text = text.replace(word, other)
        told = json.loads(text)
        own = told.pop("namespaces")
        told["own namespaces"] = sorted(own)
        told.pop("processes" if agent.runtime == "process" else "none", None)
        return told

    one, other = plain(started), plain(again)
    different = {key: (one[key], other[key]) for key in one if one[key] != other[key]}
    assert different == {}, json.dumps(different, indent=1)
    if agent.runtime != "process":
        machines = {os.readlink(f"/proc/self/ns/{name}") for name in again["namespaces"] if name != "user"}
        assert machines.isdisjoint(again["namespaces"].values())
    assert len({drawn[0], drawn_again[0], drawn_last[0]}) == 3      # random numbers are each one's own
    assert len({drawn[1], drawn_again[1], drawn_last[1]}) == 3
