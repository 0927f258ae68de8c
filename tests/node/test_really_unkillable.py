"""A process that SIGKILL does not end, for real: it asks a disk that does not answer (case 74). test_unkillable.py has the shim's part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.protocol import agent_pb2 as pb

from .conftest import AgentProcess
from .fake_server import FakeServer, Seen
from .machine_state import traces
from .stuck_folder import StuckFolder, why_not

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(why_not()), reason=why_not())]

Stick = Callable[[str], StuckFolder]


@pytest.fixture
def stick(agent: AgentProcess, server: FakeServer, tmp_path: Path) -> Iterator[Stick]:
    """Run a command as container 1-0 that says "up" and goes on when $STUCK, the folder that hangs, is there. Let go at the end."""
    made: list[StuckFolder] = []

    def start(command: str) -> StuckFolder:
        where = str(tmp_path / "stuck") if agent.runtime == "process" else "/tmp/stuck"
        wait = "echo up; while [ ! -d $STUCK ]; do sleep 0.1; done"
        server.run(1, "/bin/sh", "-c", f"STUCK={where}; {wait}; {command}", environment={"ITS": "the stuck one"})
        server.wait(1, 0, lambda seen: b"up" in seen.text())
        made.append(StuckFolder(where, 0 if agent.runtime == "process" else _pid_of(b"ITS=the stuck one")))
        assert made[0].asked.wait(30)
        return made[0]

    yield start
    for folder in made:
        folder.let_go()


def _pid_of(variable: bytes) -> int:
    return next(int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if variable in _read(path).split(b"\0"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def release(server: FakeServer) -> Seen:
    before = len(server.seen(1).released)
    server.send(release=pb.Release(assignment=1, rank=0))
    return server.wait(1, 0, lambda seen: len(seen.released) > before)


def is_back(server: FakeServer, agent: AgentProcess) -> None:
    """The agent has said that nothing of it remains, and node-0 takes work again."""
    server.until(lambda: bool(server.node_states), agent.log)
    assert [(state.node_id, state.unschedulable) for state in server.node_states] == [("node-0", "")]
    server.run(3, "/bin/sh", "-c", "echo next")
    assert server.finish(3).text() == b"next\n"


def test_case_74_its_node_is_set_aside_until_the_process_has_gone_and_comes_back_by_itself(
    agent: AgentProcess, server: FakeServer, stick: Stick
) -> None:
    before = traces(agent.paths.state, agent.paths.run)
    stuck = stick("exec cat $STUCK/weights")
    server.stop(1, grace_ms=100)
    (exited,) = server.wait(1, 0, lambda seen: bool(seen.exited)).exited
    assert exited.unkillable and exited.signal == 9 and "had not ended 10 s after SIGKILL" in exited.sentence
    remains = release(server).released[0].remains
    assert remains.startswith("processes [") and "that SIGKILL does not end" in remains

    refused = server.prepare(2).prepared[0].refusal
    assert (refused.code, refused.user_fault) == ("node", False)
    assert refused.sentence.startswith("node node-0 takes no work: UNKILLABLE: ta-1-0: process ")
    server.run(2, "/bin/sh", "-c", "echo elsewhere", rank=1, node_id="node-1")
    assert server.finish(2, 1).text() == b"elsewhere\n"

    stuck.let_go()
    is_back(server, agent)
    assert traces(agent.paths.state, agent.paths.run) - before == {}


@pytest.mark.full
def test_case_74_a_child_that_hangs_holds_up_the_end_no_longer(agent: AgentProcess, server: FakeServer, stick: Stick) -> None:
    """The main process ends by itself; what it left behind can't be killed. Its exit code stands, and the node is set aside."""
    before = traces(agent.paths.state, agent.paths.run)
    stuck = stick("cat $STUCK/weights & sleep 1; exit 3")
    (exited,) = server.wait(1, 0, lambda seen: bool(seen.exited)).exited
    assert exited.unkillable and (exited.code, exited.signal) == (3, 0)
    assert "that SIGKILL does not end" in release(server).released[0].remains
    stuck.let_go()
    is_back(server, agent)
    assert traces(agent.paths.state, agent.paths.run) - before == {}


@pytest.mark.full
def test_case_74_an_agent_that_leaves_looks_once_more(agent: AgentProcess, server: FakeServer, stick: Stick) -> None:
    before = traces(agent.paths.state, agent.paths.run)
    stuck = stick("exec cat $STUCK/weights")
    server.stop(1, grace_ms=100)
    server.wait(1, 0, lambda seen: bool(seen.exited))
    assert release(server).released[0].remains
    stuck.let_go()
    assert agent.stop() == 0, agent.log()
    assert traces(agent.paths.state, agent.paths.run) - before == {}


@pytest.mark.full
def test_case_74_the_next_agent_finds_it_says_so_and_looks_on(agent: AgentProcess, server: FakeServer, stick: Stick) -> None:
    before = traces(agent.paths.state, agent.paths.run)
    stuck = stick("exec cat $STUCK/weights")
    server.stop(1, grace_ms=100)
    server.wait(1, 0, lambda seen: bool(seen.exited))
    release(server)
    agent.kill()
    agent.start()
    server.until(lambda: len(server.registers) == 2, agent.log)
    said = {node.node_id: node.unschedulable for node in server.registers[1].nodes}
    assert "that SIGKILL does not end" in said.pop("node-0") and not any(said.values())
    release(server)
    stuck.let_go()
    is_back(server, agent)
    assert traces(agent.paths.state, agent.paths.run) - before == {}
