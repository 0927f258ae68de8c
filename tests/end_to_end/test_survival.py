"""Processes are killed under running clusters, and nothing of a killed cluster stays."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.end_to_end.inside import carriers_of, processes_of, touch
from tests.end_to_end.live import PROGRAMS, Client, Live
from tests.harness.waiting import until

pytestmark = pytest.mark.root


def numbers(lines: list[str], rank: int) -> list[int]:
    return [int(line.rsplit(" ", 1)[1]) for line in lines if f"rank {rank} line " in line]


def more_lines(client: Client) -> None:
    """Both ranks were heard of again."""
    before = [len(numbers(client.lines, rank)) for rank in (0, 1)]
    until(lambda: all(len(numbers(client.lines, rank)) > before[rank] + 5 for rank in (0, 1)), 120)


def test_case_106_kill_9_of_server_and_agent_disturbs_no_cluster_and_loses_no_line(live: Live) -> None:
    """The same containers go on, the waiting client sees nothing of it, each line comes once, and so does the result."""
    with live.running("run", f"{PROGRAMS / 'survive.py'}::lines") as client:
        client.wait_for("line 5", times=2)
        before = live.containers("write_lines")
        pids = {task: processes_of(task) for task in before}
        for victim in ("server", "agent", "server"):
            live.kill(victim)
            more_lines(client)
        assert live.containers("write_lines") == before
        assert {task: processes_of(task) for task in before} == pids
        for task in before:
            touch(task, "/tmp/finish")
        assert client.finish() == 0, client.lines
    (result,) = [line for line in client.lines if line.startswith("## result")]
    assert before[0] in result
    for rank in (0, 1):
        seen = numbers(client.lines, rank)
        assert seen == list(range(len(seen)))
        assert client.lines.count(f"rank {rank} ends") == 1
        kept = live.phalanx("logs", before[rank]).out.splitlines()
        assert numbers(kept, rank) == seen


@pytest.mark.parametrize("away_s", [3, pytest.param(90, marks=pytest.mark.full)])
def test_case_83_a_rank_ends_while_the_server_is_dead_and_nothing_restarts(live: Live, away_s: int) -> None:
    """kill -9, and nobody who starts another: the supervisor sleeps."""
    with live.running("run", f"{PROGRAMS / 'survive.py'}::four") as client:
        client.wait_for("is there", times=4)
        before = live.containers("one_leaves")
        pids = {task: processes_of(task) for task in before}
        supervisor, server = live.pid("supervisor"), live.pid("server")
        supervisor.signal(signal.SIGSTOP)
        try:
            server.signal(signal.SIGKILL)
            touch(before[3], "/tmp/leave")
            time.sleep(away_s)      # the case's own number: the time without a server, not one that a condition ends
        finally:
            supervisor.signal(signal.SIGCONT)
        assert live.containers("one_leaves") == before
        assert {task: processes_of(task) for task in before[:3]} == {task: pids[task] for task in before[:3]}
        for task in before[:3]:
            touch(task, "/tmp/finish")
        assert client.finish() == 0, client.lines
    assert [line for line in client.lines if line.startswith("## result")] == [f'## result "{before[0]}"']
    assert len([line for line in client.lines if "is there" in line]) == 4


def test_an_upgrade_in_place_replaces_the_server_under_a_running_call(live: Live) -> None:
    """`phalanx up` again: front, agent and containers are the same ones afterwards, and the caller saw nothing."""
    with live.running("run", f"{PROGRAMS / 'survive.py'}::lines") as client:
        client.wait_for("line 5", times=2)
        before, tasks = {name: live.pid(name) for name in ("supervisor", "front", "server", "agent")}, live.containers("write_lines")
        pids = {task: processes_of(task) for task in tasks}
        said = live.phalanx("up", "-d")
        assert said.code == 0, said
        assert f"replaced the server: process {before['server'].pid} (phalanx" in said.out and "1 cluster with 2 containers" in said.out
        assert {name for name, process in before.items() if live.pid(name) != process} == {"server"}
        more_lines(client)
        assert live.containers("write_lines") == tasks and {task: processes_of(task) for task in tasks} == pids
        for task in tasks:
            touch(task, "/tmp/finish")
        assert client.finish() == 0, client.lines
    for rank in (0, 1):
        seen = numbers(client.lines, rank)
        assert seen == list(range(len(seen)))


def test_case_72_children_of_a_killed_process_do_not_stay(live: Live) -> None:
    """Sessions of their own, signals ignored: gone with the container. (The GPU's part of the case needs a GPU.)"""
    live.wait_until_empty()
    before = live.traces()
    with live.running("run", f"{PROGRAMS / 'survive.py'}::children") as client:
        client.wait_for("a stubborn child", times=6)
        touch(live.containers("leave_children")[0], "/tmp/die")
        assert client.finish() == 0, client.lines
        assert "rank 0" in client.wait_for("failed:")[0] and "killed by signal 9" in client.wait_for("failed:")[0]
    live.wait_until_empty()
    assert live.traces() - before == {}


def test_case_73_kill_9_of_everything_below_the_agent_leaves_nothing_and_the_next_cluster_starts(live: Live) -> None:
    live.wait_until_empty()
    before = live.traces()
    with live.running("run", f"{PROGRAMS / 'survive.py'}::children") as client:
        client.wait_for("has children", times=2)
        tasks = live.containers("leave_children")
        agent = live.pid("agent").pid
        victims = [agent, *carriers_of(live.paths.run), *(pid for task in tasks for pid in processes_of(task))]
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:      # it went with its parent
                continue
        until(lambda: live.pid("agent").pid != agent and live.pid("agent").is_alive())
        client.wait_for("has children", times=4)        # the same nodes take a cluster again
        again = live.containers("leave_children")
        assert not set(again) & set(tasks)
        assert not any(processes_of(task) for task in tasks)
        touch(again[0], "/tmp/die")
        client.finish()
    live.wait_until_empty()
    assert live.traces() - before == {}


def test_what_goes_on_after_everything_was_killed_is_said_and_ended(another: Callable[..., Any]) -> None:
    """First the supervisor alone, then the rest: the containers live through both, and `phalanx down` leaves nothing of them."""
    with another(2) as plane:
        with plane.running("run", f"{PROGRAMS / 'long.py'}::main") as client:
            client.wait_for("trains", times=2)
            kill_all(plane, "supervisor")
            said = plane.phalanx("status")
            assert said.code == 0 and "train_long" in said.out
            assert "the supervisor of" in said.err and "its containers go on too" in said.err
            tasks = plane.containers("train_long")
            kill_all(plane, "front", "server", "agent")
            assert all(processes_of(task) for task in tasks)
            said = plane.phalanx("status")
            assert said.code == 1 and "containers of it may go on" in said.err
        assert plane.phalanx("down").out == "stopped what a killed agent had left\n"
        assert not any(processes_of(task) for task in tasks)
        assert plane.phalanx("down").out.startswith("nothing is up")


def kill_all(plane: Live, *names: str) -> None:
    for process in [plane.pid(name) for name in names]:
        process.signal(signal.SIGKILL)
        assert process.wait(20)
