"""up, status, down as their user sees them, with stand-ins for server and agent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from phalanx.cli import control_plane
from phalanx.cli.main import main
from phalanx.cli.processes import Process, read_record
from phalanx.cli.supervisor import record_path, said_grace_s
from phalanx.config import Config
from phalanx.paths import Paths


def phalanx(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


def up(paths: Paths, config: Config, *arguments: str) -> Result:
    return phalanx("up", "-d", "--state", str(paths.state), "--listen", config.listen, *arguments)


def test_up_shows_where_it_listens_and_how_a_client_gets_there(paths: Paths, config: Config, stand_ins: Any) -> None:
    said = up(paths, config, "--nodes", "4", "--gpu", "H100")
    assert said.exit_code == 0, said.output
    written = Config.load(paths.config)
    assert (written.nodes, written.gpu) == (4, "H100")
    assert f"export MODAL_SERVER_URL=http://{config.listen}" in said.output
    assert f"export MODAL_TOKEN_ID={written.token_id}" in said.output
    assert "8 simulated GPUs" in said.output
    assert "process (a stand-in)" in said.output
    assert "network: no · clean-up: yes" in said.output
    assert phalanx("down", "--state", str(paths.state)).output == "stopped supervisor, front, server, agent\n"
    assert (paths.state / "story").read_text().splitlines() == ["server ready", "agent ready", "agent ended", "server ended"]


def test_what_is_not_given_stays_as_it_was(paths: Paths, config: Config, stand_ins: Any) -> None:
    up(paths, config, "--nodes", "4")
    first = Config.load(paths.config)
    phalanx("down", "--state", str(paths.state))
    assert up(paths, config).exit_code == 0
    assert Config.load(paths.config) == first
    phalanx("down", "--state", str(paths.state))


def test_status_for_people_and_as_json(paths: Paths, config: Config, stand_ins: Any) -> None:
    up(paths, config)
    people = phalanx("status", "--state", str(paths.state)).output
    assert "local-0" in people and "8 × any simulated" in people
    assert "3 of 4 nodes free" in people
    assert json.loads(phalanx("status", "--json", "--state", str(paths.state)).output)["waiting"][0]["call"] == "fc-1"
    phalanx("down", "--state", str(paths.state))


def test_a_second_up_replaces_the_server_and_nothing_else(paths: Paths, config: Config, stand_ins: Any) -> None:
    up(paths, config)
    before = read_record(record_path(paths))
    said = up(paths, config)
    assert said.exit_code == 0, said.output
    after = read_record(record_path(paths))
    assert f"replaced the server: process {before['server'].pid} (phalanx stand-in), now process {after['server'].pid}" in said.output
    assert f"went on: front (process {before['front'].pid}), agent (process {before['agent'].pid}), 0 clusters" in said.output
    assert {name for name in before if after[name] != before[name]} == {"server"}
    phalanx("down", "--state", str(paths.state))


def test_a_second_up_that_wants_another_fleet_changes_nothing(paths: Paths, config: Config, stand_ins: Any) -> None:
    up(paths, config, "--nodes", "2")
    before = read_record(record_path(paths))
    said = up(paths, config, "--nodes", "4", "--database", "postgresql://localhost/phalanx")
    assert said.exit_code == 1
    assert "nodes from 2 to 4, database from SQLite to postgresql://localhost/phalanx. Nothing was changed: `phalanx down`" in said.output
    assert read_record(record_path(paths)) == before and Config.load(paths.config).nodes == 2
    phalanx("down", "--state", str(paths.state))


def test_a_new_server_that_does_not_start_is_shown_with_its_last_words(paths: Paths, config: Config, stand_ins: Any) -> None:
    up(paths, config)
    (paths.state / "broken").write_text("the state has schema 2")
    said = up(paths, config)
    assert said.exit_code == 1 and "the new one does not start; clients wait" in said.output and "the state has schema 2" in said.output
    (paths.state / "broken").unlink()
    wait_until(lambda: control_plane.find(paths), "the server is back")
    phalanx("down", "--state", str(paths.state))


def test_a_port_in_use_is_said_and_nothing_stays(paths: Paths, config: Config, stand_ins: Any) -> None:
    with socket.create_server(("127.0.0.1", int(config.listen.rpartition(":")[2]))):
        said = up(paths, config)
    assert said.exit_code == 1
    assert f"{config.listen} is in use" in said.output


def test_a_server_that_cannot_start_is_shown_with_its_last_words(paths: Paths, config: Config, stand_ins: Any) -> None:
    stand_ins["server"][:] = [sys.executable, "-c", "raise SystemExit('the database is newer than this phalanx')"]
    said = up(paths, config)
    assert said.exit_code == 1
    assert "the server ended at once with code 1" in said.output
    assert "the database is newer than this phalanx" in said.output


def test_down_with_nothing_up(paths: Paths) -> None:
    assert phalanx("down", "--state", str(paths.state)).output == f"nothing is up with state {paths.state}\n"


def test_status_of_a_server_that_does_not_come_back(paths: Paths, config: Config, stand_ins: Any) -> None:
    up(paths, config)
    (paths.state / "broken").write_text("the disk is full")
    read_record(record_path(paths))["server"].signal(signal.SIGKILL)
    wait_until(lambda: control_plane.find(paths) is None, "the server is gone")
    wait_until(lambda: "the disk is full" in phalanx("status", "--state", str(paths.state)).output, "its last words")
    assert "is starting; clients wait for it" in phalanx("status", "--state", str(paths.state)).output
    phalanx("down", "--state", str(paths.state))


def test_a_server_that_was_killed_comes_back(paths: Paths, config: Config, stand_ins: Any) -> None:
    up(paths, config)
    killed = read_record(record_path(paths))["server"]
    killed.signal(signal.SIGKILL)
    wait_until(lambda: read_record(record_path(paths)).get("server") not in (None, killed) and control_plane.find(paths), "another")
    assert phalanx("status", "--state", str(paths.state)).exit_code == 0
    assert f"the server (process {killed.pid}) ended with code -9" in (paths.state / "supervisor.log").read_text()
    phalanx("down", "--state", str(paths.state))


def test_the_port_stays_open_when_the_front_is_killed(paths: Paths, config: Config, stand_ins: Any) -> None:
    up(paths, config)
    before = read_record(record_path(paths))
    before["front"].signal(signal.SIGKILL)
    port = int(config.listen.rpartition(":")[2])

    def renewed() -> bool:
        socket.create_connection(("127.0.0.1", port)).close()       # refused once, and every waiting client would give up
        after = read_record(record_path(paths))
        new = {name for name in ("front", "server") if after.get(name) not in (None, before[name])}
        return len(new) == 2 and control_plane.find(paths) is not None

    wait_until(renewed, "another front and server")
    assert phalanx("status", "--state", str(paths.state)).exit_code == 0
    phalanx("down", "--state", str(paths.state))


def test_down_stops_what_a_killed_supervisor_left(paths: Paths, config: Config, stand_ins: Any) -> None:
    up(paths, config)
    supervisor = read_record(record_path(paths))["supervisor"]
    supervisor.signal(signal.SIGKILL)
    assert supervisor.wait(20)
    said = up(paths, config)
    assert said.exit_code == 1 and "an earlier run" in said.output and "`phalanx down` stops them" in said.output
    status = phalanx("status", "--state", str(paths.state))
    assert status.exit_code == 0 and "the supervisor of" in status.output and "local-0" in status.output
    assert f"server (process {read_record(record_path(paths))['server'].pid})" in status.output
    assert phalanx("down", "--state", str(paths.state)).output.startswith("stopped front, server, agent")


def test_status_when_everything_was_killed(paths: Paths, config: Config, stand_ins: Any) -> None:
    """Containers have a life of their own: what an agent leaves behind is in its folder of sockets."""
    up(paths, config)
    paths.agents_run.mkdir()
    for process in read_record(record_path(paths)).values():
        process.signal(signal.SIGKILL)
        assert process.wait(20)
    said = phalanx("status", "--state", str(paths.state))
    assert said.exit_code == 1 and "containers of it may go on: `phalanx up` takes them over, `phalanx down` removes them" in said.output
    paths.agents_run.rmdir()
    assert "nothing is up" in phalanx("status", "--state", str(paths.state)).output


def test_ctrl_c_stops_a_foreground_up(paths: Paths, config: Config, stand_ins: Any, tmp_path: Any) -> None:
    program = tmp_path / "up.py"
    program.write_text("import functools, json, sys\nfrom phalanx.cli import control_plane\nfrom phalanx.cli.main import main\n"
                       "control_plane.start = functools.partial(control_plane.start, commands=json.loads(sys.argv.pop(1)))\nmain()\n")
    command = [sys.executable, str(program), json.dumps(stand_ins), "up", "--state", str(paths.state), "--listen", config.listen]
    foreground = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: control_plane.find(paths), "up")
    assert foreground.stdout is not None
    while "Stop it: Ctrl-C" not in foreground.stdout.readline():
        pass
    foreground.send_signal(signal.SIGINT)
    output, _ = foreground.communicate(timeout=60)
    assert foreground.returncode == 0
    assert output.endswith("stopped\n")


def test_no_stranger_gets_a_signal() -> None:
    """A pid that another process has by now."""
    assert not Process(os.getpid(), "another boot/1").signal(signal.SIGKILL)


@pytest.mark.parametrize("listen", ["8900", "localhost", "host:99999"])
def test_an_address_that_is_none_is_said(paths: Paths, config: Config, stand_ins: Any, listen: str) -> None:
    config.listen = listen
    assert f"{listen!r} is no address to listen at" in up(paths, config).output


def test_an_agent_says_how_long_its_containers_may_take(paths: Paths) -> None:
    """A function's grace may be longer than the configuration's, and nobody kills the agent meanwhile."""
    assert said_grace_s(paths) == 0
    paths.agents_run.mkdir(parents=True)
    paths.leaving.write_text("90000")
    assert said_grace_s(paths) == 90
    shutil.rmtree(paths.run)
