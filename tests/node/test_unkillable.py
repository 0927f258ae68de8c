"""A process that SIGKILL does not end: uninterruptible, in the kernel. A runtime that fails to kill stands in for it (case 74)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.node import runtime, shim
from phalanx.node.process import ProcessRuntime
from phalanx.node.spec import Spec
from tests.harness.waiting import until


class Stuck(ProcessRuntime):
    """SIGKILL does nothing, to the main process or to what it left."""

    def signal(self, number: int) -> None:
        if number != signal.SIGKILL:
            super().signal(number)

    def kill(self) -> bool:
        return not self.members()

    def release(self) -> str:
        return super().release() if self.kill() else f"processes {sorted(self.members())} that SIGKILL does not end"


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A shim with such a runtime, in a process of its own; and the socket that an agent would have to it."""
    monkeypatch.setattr(runtime, "make", Stuck)
    monkeypatch.setattr(shim, "_UNKILLABLE_SECONDS", 0.2)
    made: list[Connection] = []

    def start(*command: str) -> Connection:
        folder = tmp_path / "1-0"
        (folder / "api").mkdir(parents=True)
        Spec(assignment=1, rank=0, task_id="ta-1", task_secret="", folder=str(folder), control_socket=str(folder / "ctl"),
             api_folder=str(folder / "api"), tasks_socket="", runtime="process", command=list(command), environment=dict(os.environ),
             working_folder="/", cgroup="phalanx-test-1-0").save()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                shim.run(str(folder), lambda message: None)
            os._exit(0)
        made.append(Connection(folder / "ctl", pid))
        return made[0]

    yield start
    for connection in made:
        connection.close()


class Connection:
    """What an agent says to a shim and hears from it."""

    def __init__(self, path: Path, pid: int) -> None:
        self.pid, self.main = pid, 0
        until(path.exists)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.lines = self.socket.makefile("r")
        assert json.loads(self.lines.readline())["say"] == "hello"

    def tell(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, what: str) -> dict[str, Any]:
        while (message := json.loads(self.lines.readline()))["say"] != what:
            pass
        return message

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.main or os.getpgid(self.pid), signal.SIGKILL) if self.main else None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.lines.close()
        self.socket.close()


def child_of(pid: int) -> int:
    return int(until(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split())[0])


def test_case_74_a_main_process_that_sigkill_does_not_end_is_given_up_soon_after(stuck: Any) -> None:
    agent = stuck("/bin/sh", "-c", "trap '' INT; echo up; while :; do sleep 1000; done")
    agent.tell(do="start")
    agent.hear("started")
    agent.main = child_of(agent.pid)
    agent.hear("logs")
    agent.tell(do="stop", signal=2, grace_ms=100)
    ended = agent.hear("ended")["exit"]
    assert ended["unkillable"] and ended["signal"] == signal.SIGKILL
    assert f"process {agent.main} had not ended" in ended["sentence"]
    assert ended["log_end"] > 0       # what it wrote is there
    agent.tell(do="release")
    assert "that SIGKILL does not end" in agent.hear("released")["remains"]


def test_children_that_sigkill_does_not_end_do_not_hold_up_the_end_either(stuck: Any) -> None:
    agent = stuck("/bin/sh", "-c", "sleep 1000 & echo up; exit 3")
    agent.tell(do="start")
    ended = agent.hear("ended")["exit"]
    assert (ended["code"], ended["unkillable"]) == (3, True)
    agent.tell(do="release")
    remains = agent.hear("released")["remains"]
    assert "that SIGKILL does not end" in remains
    os.kill(int(remains.partition("[")[2].partition("]")[0]), signal.SIGKILL)
