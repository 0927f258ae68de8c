"""The stock command line and lookups from other programs, over real containers."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.end_to_end.live import NEWEST, PROGRAMS, Live
from tests.harness.clients import OLDER_CLIENTS
from tests.harness.waiting import until

pytestmark = pytest.mark.root
EVERY_CLIENT = pytest.mark.parametrize("version", [NEWEST, *(pytest.param(v, marks=pytest.mark.full) for v in OLDER_CLIENTS)])


def rows(live: Live, *command: str) -> list[dict[str, Any]]:
    """A list as JSON; the names of its fields are the client's own."""
    ended = live.modal(*command, "--json")
    assert ended.code == 0, ended
    return json.loads(ended.out)  # type: ignore[no-any-return]


def mentions(row: dict[str, Any], word: str) -> bool:
    return word in map(str, row.values())


@EVERY_CLIENT
def test_a_deployed_app_is_used_watched_and_stopped(live: Live, version: str) -> None:
    deployed = live.modal("deploy", str(PROGRAMS / "deployed.py"), version=version)
    assert deployed.code == 0, deployed
    said = live.script("use_deployed.py", version=version).said
    left = said.pop("still_running")
    assert said == {"remote": 125, "cluster": "hello", "spawn": 216}

    assert any(mentions(row, "deployed") for row in rows(live, "app", "list"))
    history = live.modal("app", "history", "deployed", version=version)
    assert history.code == 0 and "v1" in history.out, history
    logs = live.modal("app", "logs", "deployed").out.splitlines()
    assert {"cubing 5", "cubing 6"} <= set(logs) and logs.count("a rank got hello") == 2, logs

    listed = {str(value) for row in rows(live, "container", "list") for value in row.values()}
    (cube,), (slumber,) = live.containers("cube"), live.containers("slumber")
    assert {cube, slumber, *live.containers("parade")} <= listed
    shared = [set(cluster["nodes"]) for cluster in live.status()["clusters"] if cluster["function"] in ("cube", "slumber")]
    assert shared[0] == shared[1], "plain functions share a node"
    until(lambda: "asleep" in live.modal("container", "logs", slumber).out.splitlines())
    assert live.script("cancel.py", left, version=version).said["cancelled"] in ("InputCancellation", "RemoteError")

    stopped = live.modal("container", "stop", "--yes", cube)
    assert stopped.code == 0, stopped
    until(lambda: not live.containers("cube"))
    ended = live.modal("app", "stop", "--yes", "deployed")
    assert ended.code == 0, ended
    until(lambda: not live.containers("parade") and not live.containers("slumber"))


@EVERY_CLIENT
def test_a_detached_app_goes_on_without_its_client(live: Live, version: str) -> None:
    ended = live.modal("run", "-d", f"{PROGRAMS / 'long.py'}::leave_behind", version=version)
    assert ended.code == 0, ended
    assert live.script("get.py", ended.said["call"], version=version).said["result"] == 42
    until(lambda: not live.containers("later"))     # with its last result the app is over


@EVERY_CLIENT
def test_ctrl_c_ends_the_program_and_its_containers(live: Live, version: str) -> None:
    with live.running("run", f"{PROGRAMS / 'long.py'}::main", version=version) as client:
        client.wait_for("trains", times=2)
        assert len(live.containers("train_long")) == 2
        client.process.send_signal(signal.SIGINT)
        assert client.finish() == 0, client.lines
    assert {f"rank {rank} was interrupted" for rank in (0, 1)} <= set(client.lines)
    until(lambda: not live.containers("train_long"))
