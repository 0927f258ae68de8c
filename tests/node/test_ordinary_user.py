"""Without root: plain processes, and crun in a user namespace. The tests are root's, the agent is not."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from phalanx.node import programs

from .conftest import SOMEBODY, AgentProcess, running
from .machine_state import traces

PYTHON = "python3"


@pytest.fixture(params=["process", pytest.param("crun", marks=pytest.mark.root)])
def agent(request, users_state, users_server, somebody):
    if request.param == "crun" and subprocess.run([*somebody[:somebody.index("env")], "unshare", "-Urmn", "true"]).returncode != 0:
        pytest.skip("this machine gives ordinary users no user namespace")
    process = AgentProcess(users_state, request.param, command=somebody)
    for path in users_state.rglob("*"):
        os.chown(path, SOMEBODY, SOMEBODY)
    yield from running(process, users_server)


def test_a_command_runs_and_leaves_nothing(agent, users_server):
    server = users_server
    before = traces(agent.paths.state, agent.paths.run)
    server.run(1, "/bin/sh", "-c", "id -u; pwd; echo $HOME; hostname; touch here; (sleep 1000 &); exit 5")
    seen = server.finish(1)
    assert seen.exited[0].code == 5, seen
    uid, folder, home, *_ = seen.text().decode().splitlines()
    assert uid == ("0" if agent.runtime == "crun" else str(SOMEBODY))
    assert folder == home
    assert seen.released[0].remains == ""
    assert traces(agent.paths.state, agent.paths.run) - before == {}


def test_the_fleet_says_what_is_missing(agent, users_server):
    node = users_server.registers[0].nodes[0]
    assert node.runtime == agent.runtime
    assert node.guarantees["limits"].startswith("no: memory is watched")
    assert ("user namespace" in node.runtime_reason) == (agent.runtime == "crun")


def test_two_containers_reach_each_other(agent, users_server):
    from .test_network import ECHO, addresses, asking

    if agent.runtime == "process":
        pytest.skip("ranks share the machine's loopback")
    server = users_server
    first = server.run(1, PYTHON, "-u", "-c", ECHO, rank=0)
    server.wait(1, 0, lambda seen: b"ready" in seen.text())
    server.run(1, PYTHON, *asking(*addresses(first))[1:], rank=1)
    assert len(server.finish(1, 1).text().splitlines()) == 6, server.seen(1, 1)
    server.stop(1, 0, signal=9)
    server.finish(1, 0)


@pytest.mark.root
def test_the_way_out_of_a_user_namespace(users_state, users_server, somebody):
    """With a /dev/net/tun that everybody may open, as on most machines: in a mount namespace of the test's own."""
    if programs.find("slirp4netns") is None or not os.path.exists("/dev/net/tun"):
        pytest.skip("needs slirp4netns and /dev/net/tun")
    tun = users_state / "tun"
    os.mknod(tun, 0o20666, os.makedev(10, 200))
    tun.chmod(0o666)
    agent = AgentProcess(users_state, "crun", command=(
        "unshare", "-m", "sh", "-c", f'mount --bind {tun} /dev/net/tun; exec "$@"', "sh", *somebody))
    os.chown(agent.paths.config, SOMEBODY, SOMEBODY)
    agent.start()
    try:
        agent.registered(users_server)
        assert users_server.registers[0].nodes[0].guarantees["network"] == "yes", agent.log()
        code = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); print(s.connect_ex(('192.0.2.99', 9)))"
        users_server.run(1, PYTHON, "-c", code)
        assert users_server.finish(1).text() == b"0\n"         # there is a route; 101 without
        helper_pid = int((agent.paths.agents_run / "outbound.pid").read_text())
    finally:
        assert agent.stop() == 0, agent.log()
    users_server.until(lambda: not os.path.exists(f"/proc/{helper_pid}"))


def test_memory_is_watched(agent, users_server):
    server = users_server
    server.run(1, PYTHON, "-c", "import time\nx = b'x' * (300 << 20)\ntime.sleep(1000)", memory_limit_mib=64)
    ended = server.finish(1).exited[0]
    assert (ended.signal, ended.oom_killed, ended.memory_limit_mib) == (9, True, 64)
    assert ended.memory_peak_mib > 64


@pytest.mark.parametrize("what", ["agent", "agent and launcher"])
def test_kill_9_of_the_agent_disturbs_no_container(agent, users_server, what):
    from .test_leaving_nothing import kill_launcher

    server = users_server
    server.run(1, "/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done; exit 7")
    server.wait(1, 0, lambda seen: b"2" in seen.text())
    agent.kill()
    if what == "agent and launcher":
        kill_launcher(agent)
    agent.start()
    server.until(lambda: len(server.registers) == 2, agent.log)
    assert server.finish(1).text() == b"1\n2\n3\n4\n5\n6\n7\n8\n"
    server.run(2, "/bin/sh", "-c", "echo next")
    assert server.finish(2).text() == b"next\n"


def test_a_killed_shim_is_cleaned_up_and_told(agent, users_server):
    from .test_leaving_nothing import shim_of

    server = users_server
    before = traces(agent.paths.state, agent.paths.run)
    server.run(1, "/bin/sh", "-c", "echo before; sleep 1000")
    server.wait(1, 0, lambda seen: b"before" in seen.text())
    os.kill(shim_of(agent, "1-0"), signal.SIGKILL)
    seen = server.finish(1)
    assert "shim" in seen.exited[0].sentence
    assert seen.released[0].remains == ""
    assert traces(agent.paths.state, agent.paths.run) - before == {}
