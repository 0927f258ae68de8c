"""A client was told "Timed out waiting for final app logs" although every line and result was there: the end of the log came while the
server was sending it something else, and what had come meanwhile was only looked at when something more came, or after 55 s."""

from __future__ import annotations

import asyncio
import threading

from modal_proto import api_pb2

from tests.harness.control_plane import ControlPlane
from tests.harness.fake_logs import FakeCluster
from tests.harness.test_logs import Following, follow  # noqa: F401
from tests.harness.waiting import until


def test_the_end_that_comes_while_lines_are_sent_is_told_at_once(control_plane: ControlPlane, follow: object) -> None:  # noqa: F811
    request = api_pb2.AppCreateRequest(description="training", app_state=api_pb2.APP_STATE_DETACHED)
    app_id = control_plane.rpc("AppCreate", request).app_id
    cluster = FakeCluster(control_plane, app_id)
    following: Following = follow("modal", "app", "logs", "-f", app_id)  # type: ignore[operator]
    cluster.write(0, "first line\n")
    assert following.saw("first line")

    database = control_plane.server.database
    sending, may_go_on, to_disk = threading.Event(), threading.Event(), database.caught_up

    async def slowly() -> None:
        """Each message waits for the disk before it is sent: this one for long."""
        sending.set()
        await to_disk()
        while not may_go_on.is_set():       # noqa: ASYNC110 (set by the test's own thread)
            await asyncio.sleep(0.01)

    database.caught_up = slowly  # type: ignore[method-assign]
    cluster.write(0, "last line\n")
    until(sending.is_set)
    cluster.end()
    may_go_on.set()
    assert following.finish().splitlines() == ["first line", "last line"]
