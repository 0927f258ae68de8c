"""What ranks write, as a person reads it with the stock client and with `phalanx logs`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import modal
import pytest
from modal_proto import api_pb2

from phalanx.model.logs import LogFilter
from tests.harness.clients import OLDER_CLIENTS, client_python
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_logs import STDERR, FakeCluster


@pytest.fixture
def app_id(control_plane: ControlPlane) -> str:
    """A detached app: its log is read from the beginning."""
    request = api_pb2.AppCreateRequest(description="training", app_state=api_pb2.APP_STATE_DETACHED)
    return str(control_plane.rpc("AppCreate", request).app_id)


@pytest.fixture
def cluster(control_plane: ControlPlane, app_id: str) -> FakeCluster:
    return FakeCluster(control_plane, app_id)


def app_logs(control_plane: ControlPlane, app_id: str, *options: str) -> str:
    shown = control_plane.modal("app", "logs", app_id, *options)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def phalanx_logs(control_plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "phalanx.cli.main", "logs", "--state", str(control_plane.folder / "none"), *arguments]
    return subprocess.run(command, env=_environment(control_plane), capture_output=True, text=True, timeout=60)


class Following:
    """A client that follows, as a process; `saw` waits for a text."""

    def __init__(self, control_plane: ControlPlane, command: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command], env=_environment(control_plane), cwd=control_plane.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.output = b""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def saw(self, text: str) -> bool:
        with self._more:
            self._more.wait_for(lambda: text.encode() in self.output or self.process.poll() is not None, 30)
            return text.encode() in self.output

    def finish(self) -> str:
        """All it printed, once it ended by itself."""
        assert self.process.wait(30) == 0, self.output.decode()
        self._reader.join()
        return self.output.decode()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while data := self.process.stdout.read1(65536):  # type: ignore[attr-defined]
            with self._more:
                self.output += data
                self._more.notify_all()
        with self._more:
            self._more.notify_all()


@pytest.fixture
def follow(control_plane: ControlPlane) -> Iterator[Callable[..., Following]]:
    begun: list[Following] = []

    def begin(*command: str) -> Following:
        begun.append(Following(control_plane, list(command)))
        return begun[-1]

    yield begin
    for following in begun:
        following.stop()


def test_the_smoke_tests_lines_are_shown_as_they_were_written(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    cluster.write(0, "container_rank=0 (main) world_size=2 main_addr='fdaa::1'\n")
    cluster.write(1, "container_rank=1  world_size=2 main_addr='fdaa::1'\n")
    assert app_logs(control_plane, app_id) == (
        "container_rank=0 (main) world_size=2 main_addr='fdaa::1'\n" "container_rank=1  world_size=2 main_addr='fdaa::1'\n"
    )


def test_a_client_that_follows_sees_lines_as_they_come_and_ends_with_the_app(
    control_plane: ControlPlane, cluster: FakeCluster, app_id: str, follow: Callable[..., Following]
) -> None:
    cluster.write(0, "before\n")
    client = follow("modal", "app", "logs", app_id, "-f")
    assert client.saw("before")
    cluster.write(1, "while it looks\n")
    assert client.saw("while it looks")
    cluster.write(0, "last words")
    cluster.end()
    assert "".join(client.finish().splitlines()[-1:]) == "last words"


def test_case_105_the_last_bytes_before_os_exit_are_shown(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    cluster.write(0, "loading\nabout to fail: no newline here")
    cluster.end()
    assert app_logs(control_plane, app_id) == "loading\nabout to fail: no newline here\n"    # the client itself ends its last line


def test_a_line_without_an_end_is_shown_after_a_short_while(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    cluster.write(0, "Continue? ")
    control_plane.advance(1_000)
    assert "Continue? " in _texts(_fetch(control_plane, app_id))
    cluster.write(0, "yes\n")
    assert "".join(_texts(_fetch(control_plane, app_id))) == "Continue? yes\n"


def test_case_106_nothing_is_lost_while_the_server_was_away(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    cluster.write(0, "before\n")
    control_plane.stop()
    for minute in range(10):
        cluster.spool_only(0, f"minute {minute}\n")
    control_plane.start()
    cluster.send(0, offset=0)    # the agent does not know which acknowledgement was lost
    assert app_logs(control_plane, app_id).splitlines() == ["before", *(f"minute {minute}" for minute in range(10))]


def test_case_106_what_a_node_had_to_drop_is_said(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    cluster.write(0, "before\nhalf a li")
    for n in range(100):
        cluster.spool_only(0, f"dropped {n}\n")
    behind = cluster.spooled(0)
    cluster.spool_only(0, "after\n")
    cluster.send(0, offset=behind)
    lines = app_logs(control_plane, app_id).splitlines()
    assert lines[0] == "before" and lines[1] == "half a li" and lines[-1] == "after"
    assert re.fullmatch(r"\[phalanx\] \d+ bytes of this container's output were lost on its node", lines[2])


def test_case_106_the_oldest_lines_go_when_the_space_is_full_and_are_counted(control_plane: ControlPlane, app_id: str) -> None:
    server = control_plane.server
    server.logs.retention.limit_bytes = 20 << 20
    cluster = FakeCluster(control_plane, app_id, size=1)
    written = 0
    for _ in range(40):
        cluster.write(0, b"".join(b"%07d %s\n" % (written + n, b"x" * 1000) for n in range(1000)))
        written += 1000
    assert server.logs.index.bytes < 30 << 20
    lines = [text for item in _fetch(control_plane, app_id, limit=1) for text in [item.data]]
    assert lines == [f"{written - 1:07d} {'x' * 1000}\n"]
    first, second = (line.text for line in control_plane.call(_first_lines, server, app_id)[:2])
    lost = int(re.fullmatch(r"\[phalanx\] (\d+) lines lost: .*\n", first)[1])  # type: ignore[index]
    assert second.startswith(f"{lost:07d} ")    # what is there goes on exactly where the count ends


def test_case_107_a_bad_byte_and_a_split_emoji(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    rocket = "🚀".encode()
    cluster.write(0, b"bad \x80 byte\n" + rocket[:2])
    cluster.write(1, "another rank in between\n")
    control_plane.advance(1_000)    # even when the part would have been shown by itself
    cluster.write(0, rocket[2:] + b" launched\n")
    lines = app_logs(control_plane, app_id).splitlines()
    assert sorted(lines) == sorted(["bad \N{REPLACEMENT CHARACTER} byte", "another rank in between", "🚀 launched"])


def test_case_109_four_ranks_are_all_there_in_their_own_order_and_told_apart(control_plane: ControlPlane, app_id: str) -> None:
    cluster = FakeCluster(control_plane, app_id, size=4)
    for n in range(25):
        for rank in range(4):
            cluster.write(rank, f"step {n} of rank {rank}\n")
    shown = app_logs(control_plane, app_id, "--show-container-id").splitlines()
    for rank in range(4):
        of_rank = [line for line in shown if line.endswith(f"of rank {rank}")]
        assert of_rank == [f"{cluster.task_id(rank)} step {n} of rank {rank}" for n in range(25)]
    lines = phalanx_logs(control_plane, cluster.cluster_id).stdout.splitlines()
    assert sorted(lines) == sorted(f"rank {rank} | step {n} of rank {rank}" for n in range(25) for rank in range(4))


def test_phalanx_logs_shows_one_rank(control_plane: ControlPlane, cluster: FakeCluster) -> None:
    cluster.write(0, "zero\n")
    cluster.write(1, "one\n", stream=STDERR)
    assert phalanx_logs(control_plane, cluster.cluster_id, "--rank", "1").stdout == "one\n"
    one = json.loads(phalanx_logs(control_plane, cluster.cluster_id, "--rank", "1", "--json").stdout)
    assert (one["rank"], one["stream"], one["container"], one["text"]) == (1, "stderr", cluster.task_id(1), "one\n")
    refused = phalanx_logs(control_plane, cluster.cluster_id, "--rank", "2")
    assert refused.returncode == 1 and "has no rank 2: its ranks are 0 to 1" in refused.stderr


def test_phalanx_logs_of_an_app_names_clusters_and_phalanx(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    cluster.write(0, "zero\n")
    control_plane.call(lambda: control_plane.server.logs.system_line(None, app_id, cluster.function_id, "a node is draining"))
    cluster.write(1, "one\n")
    assert phalanx_logs(control_plane, app_id).stdout.splitlines() == [
        "cu-7 rank 0 | zero", "phalanx | a node is draining", "cu-7 rank 1 | one",
    ]  # fmt: skip
    assert phalanx_logs(control_plane, app_id, "--tail", "1").stdout == "cu-7 rank 1 | one\n"
    missing = phalanx_logs(control_plane, "nothing")
    assert missing.returncode == 1 and "App, cluster or container 'nothing' not found" in missing.stderr


def test_phalanx_logs_follows_over_a_restart_of_the_server(
    control_plane: ControlPlane, cluster: FakeCluster, follow: Callable[..., Following]
) -> None:
    client = follow("phalanx.cli.main", "logs", "--state", str(control_plane.folder / "none"), cluster.cluster_id, "-f")
    cluster.write(0, "before\n")
    assert client.saw("before")
    control_plane.restart()
    cluster.write(1, "after\n")
    assert client.saw("after")
    cluster.end()
    assert client.finish().splitlines() == ["rank 0 | before", "rank 1 | after"]


def test_ranks_lines_are_not_merged_where_one_has_no_end_yet(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    cluster.write(0, "epoch 1 ...")
    control_plane.advance(1_000)
    cluster.write(1, "other rank\n")
    cluster.write(0, "done\n")
    assert app_logs(control_plane, app_id).splitlines() == ["epoch 1 ...", "other rank", "done"]


def test_ten_megabytes_in_one_line_arrive_whole(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    line = b"0123456789" * (1 << 20) + b"\n"
    for at in range(0, len(line), 65_536):
        cluster.spool_only(0, line[at : at + 65_536])
    cluster.send(0)
    assert app_logs(control_plane, app_id) == line.decode()


def test_progress_bars_survive(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    for step in range(0, 101, 20):
        cluster.write(0, f"\r{step:3d}% done", stream=STDERR)
    cluster.write(0, "\n", stream=STDERR)
    assert "".join(_texts(_fetch(control_plane, app_id))) == "".join(f"\r{step:3d}% done" for step in range(0, 101, 20)) + "\n"
    assert "100% done" in app_logs(control_plane, app_id)


def test_filters_of_the_stock_command(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    cluster.write(0, "loss 0.5\n")
    cluster.write(1, "a warning\n", stream=STDERR)
    control_plane.call(lambda: control_plane.server.logs.system_line(None, app_id, cluster.function_id, "node-1 is draining"))
    assert app_logs(control_plane, app_id, "--source", "stderr") == "a warning\n"
    assert app_logs(control_plane, app_id, "--source", "system") == "node-1 is draining\n"
    assert app_logs(control_plane, app_id, "--search", "loss") == "loss 0.5\n"
    assert app_logs(control_plane, app_id, "--container", cluster.task_id(1)) == "a warning\n"
    assert app_logs(control_plane, app_id, "--tail", "1") == "node-1 is draining\n"
    assert len(app_logs(control_plane, app_id, "--since", "1h").splitlines()) == 3
    assert app_logs(control_plane, app_id, "--since", "2h", "--until", "1h") == ""


def test_a_long_log_is_read_in_ranges_without_a_gap_or_a_double(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    begin = time.time_ns() - 600 * 1_000_000_000
    count = 30_000      # more than one fetch may bring
    for rank in (0, 1):
        for at in range(0, count, 1000):
            for n in range(at, at + 1000):
                cluster.spool_only(rank, f"{rank}-{n}\n", time_ns=begin + n * 20_000_000)
            cluster.send(rank)
    shown = app_logs(control_plane, app_id, "--since", "1h").split()
    assert len(shown) == 2 * count and len(set(shown)) == 2 * count
    assert [line for line in shown if line.startswith("1-")] == [f"1-{n}" for n in range(count)]


def test_container_logs(control_plane: ControlPlane, cluster: FakeCluster, follow: Callable[..., Following]) -> None:
    cluster.write(0, "zero\n")
    cluster.write(1, "one\n")
    assert control_plane.modal("container", "logs", cluster.task_id(1)).stdout == "one\n"
    client = follow("modal", "container", "logs", cluster.task_id(1), "-f")
    assert client.saw("one")
    cluster.write(1, "the end")
    cluster.exit(1)
    assert client.finish().strip() == "one\nthe end"
    assert control_plane.modal("container", "logs", cluster.task_id(1), "--all").stdout == "one\nthe end\n"


def test_containers_are_listed_until_they_are_gone(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    listed = json.loads(control_plane.modal("container", "list", "--json").stdout)
    assert {row["container_id"] for row in listed} == {cluster.task_id(0), cluster.task_id(1)}
    assert {row["app_name"] for row in listed} == {"training"}
    cluster.exit(0)
    listed = json.loads(control_plane.modal("container", "list", "--app-id", app_id, "--json").stdout)
    assert [row["container_id"] for row in listed] == [cluster.task_id(1)]
    assert "not found" in control_plane.modal("container", "logs", "ta-none").stderr


def test_a_clusters_containers_are_known_by_rank(control_plane: ControlPlane, cluster: FakeCluster) -> None:
    assert modal.Cluster.from_id(cluster.cluster_id).container_ids() == [cluster.task_id(0), cluster.task_id(1)]
    with pytest.raises(modal.exception.NotFoundError, match="Cluster 'cu-none' not found"):
        modal.Cluster.from_id("cu-none").container_ids()
    assert control_plane.rpc("ClusterReservationList", api_pb2.ClusterReservationListRequest()).reservations == []


@pytest.mark.full
@pytest.mark.parametrize("version", OLDER_CLIENTS)
def test_older_clients_follow_an_apps_log(control_plane: ControlPlane, cluster: FakeCluster, app_id: str, version: str) -> None:
    cluster.write(0, "from rank 0\n")
    cluster.write(1, "no newline")
    control_plane.call(control_plane.server.logs.progress, app_id, cluster.function_id, 1, 0, "waiting for 2 nodes")
    cluster.end()
    shown = control_plane.modal("app", "logs", app_id, python=client_python(version))
    assert shown.stdout.splitlines() == ["from rank 0", "no newline"], shown.stderr


def _environment(control_plane: ControlPlane) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "PHALANX_"))}
    return clean | control_plane.env | {"NO_COLOR": "1", "COLUMNS": "200"}


def _fetch(control_plane: ControlPlane, app_id: str, limit: int = 1000) -> list[Any]:
    request = api_pb2.AppFetchLogsRequest(app_id=app_id, limit=limit)
    return [item for batch in control_plane.rpc("AppFetchLogs", request).batches for item in batch.items]


def _texts(items: list[Any]) -> list[str]:
    return [item.data for item in items]


def _first_lines(server: Any, app_id: str) -> list[Any]:
    return list(server.logs.reading.cursor(app_id, 0, LogFilter()).next()[0])
