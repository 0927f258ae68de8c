"""A runner that was forked from a zygote: the same to the user's program as one that was started, and only where it can be."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from .conftest import AgentProcess
from .machine_state import traces

# Stands for the client: a runner that says all that a program can know of the process it runs in.
RUNNER = b"""
import asyncio, json, logging, os, queue, random, ssl, threading, uuid
import modal.settings

if __name__ == "__main__":
    import gc, resource, signal, sys, time

    def text(path):
        with open(path) as file:
            return file.read()

    match os.environ.get("PROBE"):
        case "wait":
            print("up", flush=True)
            try:
                time.sleep(1000)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                sys.exit(5)
        case "die":
            os.kill(os.getpid(), 9)
        case "leave":
            import subprocess
            for seconds in ("1001", "1002"):
                subprocess.Popen(["sh", "-c", f"(setsid sleep {seconds} &)"], start_new_session=True).wait()
            sys.exit(0)

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


def zygotes(agent: AgentProcess) -> set[int]:
    """Pids of the zygotes of this agent and of the forks of them that wait for containers' processes."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            told = (folder / "environ").read_bytes() + (folder / "mountinfo").read_bytes()
        except OSError:
            continue
        if b"'zygote', 'exec'" in words and str(agent.paths.node / "zygotes").encode() in told:
            found.add(int(folder.name))
    return found


def the_zygote(agent: AgentProcess) -> int:
    """The one whose parent keeps it: a shim, which is no fork of it."""
    pids = zygotes(agent)
    [zygote] = [pid for pid in pids if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) not in pids]
    return zygote


def was_forked(agent: AgentProcess, assignment: int) -> bool:
    folder = agent.paths.node / f"containers/{assignment}-0"
    return bool(json.loads((folder / "spec.json").read_text())["zygote"]) and not (folder / "shim.log").read_text()


def started(server: Any, assignment: int, **fields: Any) -> None:
    server.layers |= {"client": CLIENT, "program": PROGRAM}
    server.run(assignment, **{"layer_ids": ["client", "program"], **fields})


def forked(agent: AgentProcess, server: Any, first: int, **fields: Any) -> int:
    """A container that was forked, by its number: the ones before it, while the zygote imports, are ended."""
    for assignment in range(first, first + 300):
        started(server, assignment, **fields)
        if was_forked(agent, assignment):
            return assignment
        server.stop(assignment, signal=9)
        server.finish(assignment)
        time.sleep(0.05)        # no need to start hundreds meanwhile
    raise AssertionError("no container was forked")


def said(server: Any, assignment: int) -> tuple[dict[str, Any], list[Any]]:
    seen = server.finish(assignment)
    assert (seen.exited[0].code, seen.released[0].remains) == (7, ""), seen.text().decode()
    process, drawn = seen.text(1).decode().splitlines()
    return json.loads(process), json.loads(drawn)


def test_a_program_cannot_tell_a_forked_runner_from_a_started_one(agent, server):
    environment = {"USERS_OWN": "naïve\nvalue", "PYTHONUNBUFFERED": "1"}
    started(server, 1, environment=environment)
    assert not was_forked(agent, 1)         # nobody has seen this client before
    process, drawn = said(server, 1)
    again, drawn_again = said(server, forked(agent, server, 100, environment=environment))
    _, drawn_last = said(server, forked(agent, server, 500, environment=environment))

    def plain(seen: dict[str, Any]) -> dict[str, Any]:
        """Without what differs between any two containers."""
        number = seen["environ"]["MODAL_TASK_ID"].removeprefix("ta-")
        told = json.loads(json.dumps(seen).replace(number, "N-0"))
        told["namespaces"] = sorted(told["namespaces"])
        if agent.runtime == "process":
            del told["processes"]           # the machine's
        return told

    one, other = plain(process), plain(again)
    different = {key: (one[key], other[key]) for key in one if one[key] != other[key]}
    assert different == {}, json.dumps(different, indent=1)
    if agent.runtime != "process":
        machines = {os.readlink(f"/proc/self/ns/{name}") for name in again["namespaces"] if name != "user"}
        assert machines.isdisjoint(again["namespaces"].values())
    assert len({drawn[0], drawn_again[0], drawn_last[0]}) == 3      # random numbers are each one's own
    assert len({drawn[1], drawn_again[1], drawn_last[1]}) == 3


def test_the_end_of_a_forked_process_is_told_as_it_was(agent, server):
    number = forked(agent, server, 1, environment={"PROBE": "wait"})
    server.wait(number, 0, lambda seen: b"up" in seen.text())
    server.stop(number, signal=signal.SIGINT)
    seen = server.finish(number)
    assert (seen.exited[0].code, seen.text()) == (5, b"up\ninterrupted\n")
    seen = server.finish(forked(agent, server, 400, environment={"PROBE": "die"}))
    assert (seen.exited[0].code, seen.exited[0].signal, seen.exited[0].oom_killed) == (0, 9, False)


def test_what_a_forked_process_leaves_running_goes_with_it(agent, server):
    before = traces(agent.paths.state, agent.paths.run)
    seen = server.finish(forked(agent, server, 1, environment={"PROBE": "leave"}))
    assert (seen.exited[0].code, seen.released[0].remains) == (0, "")
    left = traces(agent.paths.state, agent.paths.run) - before
    assert not [words for words in left.get("processes", []) if "sleep 100" in words]
    server.until(lambda: zygotes(agent) == {the_zygote(agent)})


def test_a_killed_zygote_costs_no_container_and_is_made_again(agent, server):
    number = forked(agent, server, 1, environment={"PROBE": "wait"})
    killed = the_zygote(agent)
    os.kill(killed, signal.SIGKILL)
    other = started_without(agent, server, 400, killed)
    server.wait(number, 0, lambda seen: b"up" in seen.text())
    for running in (number, other):
        server.stop(running, signal=signal.SIGINT)
        assert server.finish(running).exited[0].code == 5
    number = forked(agent, server, 500, environment={"PROBE": "wait"})
    server.stop(number, signal=9)
    server.finish(number)
    assert the_zygote(agent) != killed


def started_without(agent: AgentProcess, server: Any, assignment: int, killed: int) -> int:
    """A container that is started right after its zygote was killed, whether the agent knows of that already or not."""
    started(server, assignment, environment={"PROBE": "wait"})
    server.wait(assignment, 0, lambda seen: b"up" in seen.text())
    assert not was_forked(agent, assignment)
    assert not Path(f"/proc/{killed}").exists()
    return assignment


def test_a_killed_waiter_ends_its_container_and_says_so(agent, server):
    number = forked(agent, server, 1, environment={"PROBE": "wait"})
    server.wait(number, 0, lambda seen: b"up" in seen.text())
    [waiter] = zygotes(agent) - {the_zygote(agent)}
    os.kill(waiter, signal.SIGKILL)
    seen = server.finish(number)
    assert seen.exited[0].unseen
    assert "waiter" in seen.exited[0].sentence
    assert seen.released[0].remains == ""
    assert zygotes(agent) == {the_zygote(agent)}


def test_a_program_that_hides_one_of_the_runners_modules_is_started(agent, server):
    """Its queue.py must be found first, as it is when Python starts beside it."""
    server.finish(forked(agent, server, 1, environment={"PROBE": "die"}))
    server.layers["hiding"] = [("/root/queue.py", b"import sys\nprint('mine', flush=True)\nsys.exit(9)\n")]
    started(server, 400, layer_ids=["client", "hiding"])
    assert not was_forked(agent, 400)
    assert server.finish(400).text() == b"mine\n"
    started(server, 401, environment={"MODAL_LOGLEVEL": "DEBUG"})      # the client reads that while it is imported
    assert not was_forked(agent, 401)
    said(server, 401)


def test_a_new_agent_takes_over_forked_containers_and_makes_a_zygote_at_once(agent, server):
    number = forked(agent, server, 1, environment={"PROBE": "wait"})
    server.wait(number, 0, lambda seen: b"up" in seen.text())
    killed = the_zygote(agent)
    agent.kill()
    agent.start()
    agent.registered(server)
    server.until(lambda: len(zygotes(agent)) == 2 and not Path(f"/proc/{killed}").exists(), agent.log)    # new, and the old one's waiter
    server.stop(number, signal=signal.SIGINT)
    assert server.finish(number).exited[0].code == 5


def test_a_stopped_agent_leaves_no_zygote(agent, server):
    before = traces(agent.paths.state, agent.paths.run)
    forked(agent, server, 1, environment={"PROBE": "wait"})
    assert agent.stop() == 0
    assert zygotes(agent) == set()
    left = traces(agent.paths.state, agent.paths.run) - before
    assert left == {}
    assert [path.name for path in (agent.paths.node / "zygotes").iterdir()] == ["last.json"]
