"""What a client shows beside lines: why a call waits, and how many containers run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpclib.client import Channel, UnaryStreamMethod
from modal_proto import api_pb2

from phalanx.server import log_display
from tests.harness.control_plane import LOCAL, ControlPlane
from tests.harness.fake_logs import FakeCluster


@pytest.fixture
def app_id(control_plane: ControlPlane) -> str:
    return str(control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(app_state=api_pb2.APP_STATE_DETACHED)).app_id)


@pytest.fixture
def cluster(control_plane: ControlPlane, app_id: str) -> FakeCluster:
    return FakeCluster(control_plane, app_id)


WHY = "waiting for 4 nodes with 8 H100: 2 free, 2 held by cu-1"


def test_a_wait_is_a_queue_line_and_after_a_while_one_info_line(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    logs = control_plane.server.logs
    control_plane.call(logs.progress, app_id, cluster.function_id, 1, 0, WHY)
    batches = stream(control_plane, app_id)
    progress = batches[0].items[0].task_progress
    assert batches[0].function_id == cluster.function_id and batches[0].entry_id == ""
    assert progress.description == f"'train' is queued: {WHY}" and progress.len != progress.pos
    assert progress.progress_type == api_pb2.FUNCTION_QUEUED
    assert info_lines(batches) == []
    control_plane.advance(log_display.SAY_AFTER_MS)
    control_plane.advance(log_display.SAY_AGAIN_MS)     # nothing new to say
    batches = stream(control_plane, app_id)
    assert info_lines(batches) == [f"'train' waits: {WHY}\n"]
    assert batches[0].items[0].task_progress.description == "'train' is queued"      # a terminal does not show it twice


def test_a_short_wait_leaves_no_line_behind(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    logs = control_plane.server.logs
    control_plane.call(logs.progress, app_id, cluster.function_id, 1, 0, WHY)
    control_plane.call(logs.task_state, app_id, cluster.function_id, cluster.task_id(0), "creating")
    control_plane.advance(60_000)
    batches = stream(control_plane, app_id)
    assert info_lines(batches) == []
    items = [item for batch in batches for item in batch.items]
    assert [item.task_state for item in items if item.task_state] == [api_pb2.TASK_STATE_WORKER_ASSIGNED]
    assert [(i.task_progress.len, i.task_progress.pos) for i in items if i.task_progress.len] == [(1, 1)]   # takes the queue line away


def test_the_status_line_counts_containers(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    logs = control_plane.server.logs
    for rank in (0, 1):
        control_plane.call(logs.task_state, app_id, cluster.function_id, cluster.task_id(rank), "active")
    states = {batch.task_id: batch.items[0].task_state for batch in stream(control_plane, app_id)}
    assert states == {cluster.task_id(0): api_pb2.TASK_STATE_ACTIVE, cluster.task_id(1): api_pb2.TASK_STATE_ACTIVE}
    control_plane.restart()
    assert len(stream(control_plane, app_id)) == 2     # a restart knows it from the members
    cluster.end()
    batches = stream(control_plane, app_id)
    assert batches[-1].app_done and not any(batch.items for batch in batches)


def test_a_stream_goes_on_behind_its_last_entry(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    cluster.write(0, "one\n")
    cluster.write(1, "two\n")
    first = [batch for batch in stream(control_plane, app_id) if batch.entry_id]
    cluster.write(0, "three\n")
    again = [batch for batch in stream(control_plane, app_id, first[0].entry_id) if batch.entry_id]
    assert [(item.data, batch.task_id) for batch in again for item in batch.items] == [
        ("two\n", cluster.task_id(1)), ("three\n", cluster.task_id(0)),
    ]  # fmt: skip
    assert stream(control_plane, app_id, again[-1].entry_id) == []


def test_a_failure_of_ours_is_not_repeated_by_the_client_in_a_loop(
    control_plane: ControlPlane, app_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_plane.server.logs.reading, "cursor", None)
    assert stream(control_plane, app_id, timeout=0.1) == []
    assert "AppGetLogs of" in control_plane.bugs.pop()


def test_lines_know_the_call_they_belong_to(control_plane: ControlPlane, cluster: FakeCluster, app_id: str) -> None:
    from phalanx.model.work import Input

    begun = control_plane.server.now_ms()
    cluster.write(0, "importing\n", time_ns=(begun - 5) * 1_000_000)
    item = Input("in-1", "fc-1", cluster.function_id, 0, assignment=cluster.number, started_ms=begun)
    control_plane.call(control_plane.server.logs.inputs.started, item)
    cluster.write(0, "working\n", time_ns=(begun + 5) * 1_000_000)
    assert control_plane.modal("app", "logs", app_id, "--function-call", "fc-1", "--show-function-call-id").stdout == "fc-1 working\n"


def stream(control_plane: ControlPlane, app_id: str, after: str = "", timeout: float = 0.0) -> list[Any]:
    """All that one AppGetLogs answers."""

    async def read() -> list[Any]:
        channel = Channel(LOCAL, control_plane.port)
        method = UnaryStreamMethod(channel, "/modal.client.ModalClient/AppGetLogs", api_pb2.AppGetLogsRequest, api_pb2.TaskLogsBatch)
        token = {"x-modal-token-id": control_plane.config.token_id, "x-modal-token-secret": control_plane.config.token_secret}
        try:
            async with method.open(timeout=30, metadata=token) as opened:
                await opened.send_message(api_pb2.AppGetLogsRequest(app_id=app_id, timeout=timeout, last_entry_id=after), end=True)
                return [batch async for batch in _batches(opened)]
        finally:
            channel.close()

    return list(control_plane.call(read))


async def _batches(opened: Any) -> AsyncIterator[Any]:
    while (batch := await opened.recv_message()) is not None:
        yield batch
        await asyncio.sleep(0)


def info_lines(batches: list[Any]) -> list[str]:
    return [item.data for batch in batches for item in batch.items if item.file_descriptor == api_pb2.FILE_DESCRIPTOR_INFO]
