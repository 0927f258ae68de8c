"""After a crash or a reboot: what is left is gone before the agent takes work, whether its folder still tells of it or not (case 75)."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable

import pytest

from .conftest import AgentProcess
from .fake_server import FakeServer
from .machine_state import traces
from .test_leaving_nothing import shim_of


def kill_shim(agent: AgentProcess) -> None:
    os.kill(shim_of(agent, "1-0"), signal.SIGKILL)


def lose_folder(agent: AgentProcess) -> None:
    shutil.rmtree(agent.paths.node / "containers" / "1-0")


def spoil_spec(agent: AgentProcess) -> None:
    (agent.paths.node / "containers/1-0/spec.json").write_text('{"assignment": 1, "half a line')


@pytest.mark.parametrize(
    "faults",
    [(kill_shim, lose_folder), (lose_folder,), (kill_shim, spoil_spec), (spoil_spec,)],
    ids=["shim and folder gone", "folder gone", "shim gone, spec spoilt", "spec spoilt"],
)
def test_case_75_what_no_folder_tells_of_is_gone_before_an_agent_takes_work(
    agent: AgentProcess, server: FakeServer, faults: tuple[Callable[[AgentProcess], None], ...]
) -> None:
    before = traces(agent.paths.state, agent.paths.run)
    server.run(1, "/bin/sh", "-c", "(setsid sleep 1000 &) ; echo up; exec sleep 1000")
    server.wait(1, 0, lambda seen: b"up" in seen.text())
    agent.kill()
    for fault in faults:
        fault(agent)
    agent.start()
    server.until(lambda: len(server.registers) == 2, agent.log)
    assert not server.registers[1].adopted
    assert not any(node.unschedulable for node in server.registers[1].nodes)
    assert traces(agent.paths.state, agent.paths.run) - before == {}
    server.run(2, "/bin/sh", "-c", "echo next")
    assert server.finish(2).text() == b"next\n"


def test_case_75_containers_of_an_earlier_boot_are_cleaned_up_and_told(agent: AgentProcess, server: FakeServer) -> None:
    """Nothing of them runs: their end is reported as nobody's fault, with the last lines they wrote, and their expected peers are kept."""
    server.run(1, "/bin/sh", "-c", "echo last words; exec sleep 1000")
    server.wait(1, 0, lambda seen: b"last words" in seen.text())
    server.run(2, "/bin/sh", "-c", "echo up; exec sleep 1000")
    server.wait(2, 0, lambda seen: b"up" in seen.text())
    shim = shim_of(agent, "1-0")
    agent.kill()
    os.kill(shim, signal.SIGKILL)
    agent.start()
    server.until(lambda: len(server.registers) == 2, agent.log)
    assert {(a.assignment, a.ended) for a in server.registers[1].adopted} == {(1, True), (2, False)}
    seen = server.finish(1)
    assert seen.exited[0].unseen and seen.text() == b"last words\n"
    assert not server.seen(2).exited
    server.stop(2, signal=9)
    server.finish(2)
