"""Nothing of a container remains after its release, nothing of an agent after its end, whatever was killed in between."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from .conftest import AgentProcess, two_nodes
from .machine_state import traces
from .test_output import python


def machine(agent):
    return traces(agent.paths.state, agent.paths.run)


@two_nodes
def test_a_release_leaves_nothing(agent, server):
    before = machine(agent)
    server.run(1, "/bin/sh", "-c", "(setsid sleep 1000 &) ; sleep 1000 & echo up; exec sleep 1000")
    server.run(1, "/bin/sh", "-c", "echo second; sleep 1000", rank=1, node_id="node-1")
    server.wait(1, 0, lambda seen: b"up" in seen.text())
    assert machine(agent) - before
    server.stop(1, 0, signal=9)
    server.stop(1, 1, signal=9)
    assert server.finish(1, 0).released[0].remains == ""
    assert server.finish(1, 1).released[0].remains == ""
    assert machine(agent) - before == {}


def test_what_a_main_process_leaves_running_goes_with_it(agent, server):
    before = machine(agent)
    server.run(1, *python(
        "import subprocess, sys; subprocess.Popen(['sleep', '1000'], start_new_session=True); subprocess.Popen(['sleep', '1001'])"))
    assert server.finish(1).exited[0].code == 0
    assert machine(agent) - before == {}


def test_a_stop_undoes_what_was_only_prepared(agent, server):
    before = machine(agent)
    server.prepare(1)
    server.stop(1)
    seen = server.finish(1)
    assert seen.exited[0].never_started
    assert machine(agent) - before == {}


def test_a_refused_prepare_leaves_nothing_and_says_why(agent, server):
    before = machine(agent)
    seen = server.prepare(1, python_version="3.6")
    assert seen.prepared[0].refusal.user_fault
    assert "Python 3.6" in seen.prepared[0].refusal.sentence
    assert machine(agent) - before == {}


def test_a_stopped_agent_takes_all_its_containers_with_it(agent, server):
    server.run(1, "/bin/sh", "-c", "trap '' INT; echo up; sleep 1000; sleep 1000")
    server.wait(1, 0, lambda seen: b"up" in seen.text())
    assert agent.stop() == 0
    left = machine(agent)
    assert not (left.processes | left.links | left.mounts | left.cgroups | left.folders), left
    agent.start()
    server.until(lambda: len(server.registers) == 2, agent.log)
    assert not server.registers[1].adopted


def test_what_a_killed_agent_left_can_be_removed_without_a_server(agent, server):
    server.run(1, "/bin/sh", "-c", "echo up; sleep 1000")
    server.wait(1, 0, lambda seen: b"up" in seen.text())
    agent.kill()
    server.down()
    assert agent.clean() == 0
    left = machine(agent)
    assert not (left.processes | left.links | left.mounts | left.cgroups | left.folders), left
    server.up()


def shim_of(agent, name: str) -> int:
    """The shim's pid: it holds the container's control socket open."""
    inodes = [line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(f"/node/{name}.ctl")]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            held = [os.readlink(entry) for entry in (folder / "fd").iterdir()]
            command = (folder / "cmdline").read_text()
        except OSError:     # others' processes come and go
            continue
        if str(agent.paths.run) in command and any(f"socket:[{inode}]" in held for inode in inodes):
            return int(folder.name)
    raise AssertionError(f"no shim for {name}")


def test_a_killed_shim_is_cleaned_up_and_told(agent, server):
    before = machine(agent)
    server.run(1, "/bin/sh", "-c", "echo before; sleep 1000")
    server.wait(1, 0, lambda seen: b"before" in seen.text())
    os.kill(shim_of(agent, "1-0"), signal.SIGKILL)
    seen = server.finish(1)
    assert "shim" in seen.exited[0].sentence
    assert seen.exited[0].unseen
    assert seen.text() == b"before\n"
    assert seen.released[0].remains == ""
    assert machine(agent) - before == {}


def test_shims_that_died_with_the_agent_are_cleaned_up_before_it_registers(agent, server):
    before = machine(agent)
    server.run(1, "/bin/sh", "-c", "echo before; sleep 1000")
    server.wait(1, 0, lambda seen: b"before" in seen.text())
    shim = shim_of(agent, "1-0")
    agent.kill()
    os.kill(shim, signal.SIGKILL)
    agent.start()
    server.until(lambda: len(server.registers) == 2, agent.log)
    assert [a.ended for a in server.registers[1].adopted] == [True]
    assert server.finish(1).exited[0].code == 255
    assert machine(agent) - before == {}


@pytest.mark.parametrize("what", ["agent", "agent and launcher"])
def test_kill_9_of_the_agent_disturbs_no_container(agent, server, what):
    server.run(1, "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.1; done; exit 7")
    server.wait(1, 0, lambda seen: b"2" in seen.text())
    agent.kill()
    if what == "agent and launcher":
        kill_launcher(agent)
    agent.start()
    server.until(lambda: len(server.registers) == 2, agent.log)
    assert [(a.assignment, a.rank) for a in server.registers[1].adopted] == [(1, 0)]
    seen = server.finish(1)
    assert seen.text() == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"
    assert seen.exited[0].code == 7
    assert len({started.boottime_ms for started in seen.started}) == 1
    server.run(2, "/bin/sh", "-c", "echo next")
    assert server.finish(2).text() == b"next\n"


def test_an_agent_without_its_launcher_ends_for_the_next_to_start_one(agent, server):
    """`phalanx up` starts an agent again that ended."""
    server.run(1, "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.1; done")
    server.wait(1, 0, lambda seen: b"2" in seen.text())
    kill_launcher(agent)
    assert agent.process.wait(30) == 1
    agent.start()
    server.until(lambda: len(server.registers) == 2, agent.log)
    assert server.finish(1).text() == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"
    server.run(2, "/bin/sh", "-c", "echo next")
    assert server.finish(2).text() == b"next\n"


def kill_launcher(agent) -> None:
    """The launcher alone, not the shims, which are forks of it."""
    for process in Path("/proc").glob("[0-9]*"):
        if is_launcher(process, agent):
            os.kill(int(process.name), signal.SIGKILL)
            return
    raise AssertionError("no launcher")


def is_launcher(process: Path, agent) -> bool:
    """The oldest of the processes that have the launcher's command line; shims are forks of it."""
    try:
        words = (process / "cmdline").read_text()
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        parents = (Path("/proc") / str(parent) / "cmdline").read_text()
    except OSError:
        return False
    return "phalanx.node.launcher" in words and str(agent.paths.run) in words and "phalanx.node.launcher" not in parents


def test_repeated_commands_change_nothing(agent, server):
    first = server.prepare(1, command=["/bin/sh", "-c", "echo once; sleep 1000"]).prepared[0]
    assert server.prepare(1).prepared[1] == first
    from phalanx.protocol import agent_pb2 as pb

    server.send(start=pb.Start(assignment=1, rank=0))
    server.wait(1, 0, lambda seen: b"once" in seen.text())
    server.send(start=pb.Start(assignment=1, rank=0))
    server.wait(1, 0, lambda seen: len(seen.started) == 2)
    server.send(stop=pb.Stop(assignment=99, rank=0, signal=9))       # an assignment that never was
    server.stop(1, signal=9)
    seen = server.finish(1)
    assert seen.text() == b"once\n"
    server.send(release=pb.Release(assignment=1, rank=0))
    server.wait(1, 0, lambda seen: len(seen.released) == 2)


def test_an_agent_that_is_stopped_while_it_comes_up_leaves_nothing(state, server):
    """SIGTERM at whatever moment: its bridge must not come to be after it has left."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for moment in (0, 1, 2, 3):
        agent = AgentProcess(state, "crun")
        registers = len(server.registers)
        agent.start()
        if moment:
            server.until(lambda: len(server.registers) > registers, agent.log)      # noqa: B023
            time.sleep(0.01 * (moment - 1))     # no condition to wait for: any moment is right
        else:
            server.until(lambda: "runtime" in agent.log(), agent.log)               # noqa: B023
        assert agent.stop() == 0, agent.log()
        left = machine(agent)
        assert not (left.processes | left.links | left.mounts | left.cgroups | left.folders), left
