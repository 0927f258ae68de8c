"""Logs when things go wrong: kill -9 at any moment, a full disk, an agent that says everything twice."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from modal_proto import api_pb2

from phalanx.config import Config
from phalanx.model.cluster import Member
from phalanx.model.logs import LogFilter, LogLine, LogPiece
from phalanx.paths import Paths
from phalanx.server import logs as module
from phalanx.server.server import Server
from tests.harness.control_plane import ControlPlane
from tests.harness.fake_logs import HEADER, FakeCluster

WORDS = [b"a line\n", b"half", b" more", b"\xf0\x9f", b"\x9a\x80\n", b"\r", b"x" * 60]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 2), st.sampled_from(WORDS)),
        st.tuples(st.sampled_from(["send", "send twice", "kill", "idle"]), st.just(0), st.just(b"")),
    ),
    max_size=30,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_whatever_happens_each_stream_reads_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", 150)       # many pieces and segments
        patch.setattr(module, "SEGMENT_BYTES", 400)
        written, read = Story(tmp_path_factory.mktemp("state")).play(steps)
    assert read == written


class Story:
    """One rank's spool and a server that may be killed between any two steps: each life is a loop of its own."""

    def __init__(self, state: Path) -> None:
        self._paths = Paths(state)
        self._config = Config(durability="process").with_secrets()
        self._spool: list[tuple[int, int, int, bytes]] = []
        self._end = 0
        self._acked = 0

    def play(self, steps: list[Any]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        lives: list[list[Any]] = [[]]
        for step in steps:
            if step[0] == "kill":
                lives.append([])
            else:
                lives[-1].append(step)
        for life in lives:
            asyncio.run(self._live(life))
        lines = asyncio.run(self._read())
        written = {stream: b"".join(data for _, s, _, data in self._spool if s == stream) for stream in (1, 2)}
        return written, {stream: b"".join(line.data for line in lines if line.stream == stream) for stream in (1, 2)}

    async def _live(self, steps: list[Any]) -> None:
        server, member = await self._begin()
        pending = []
        for what, stream, data in steps:
            if what == "write":
                self._spool.append((self._end, stream, time.time_ns(), data))
                self._end += HEADER + len(data)
            elif what == "idle":
                for writer in list(server.logs._writers.values()):
                    writer.heard = {s: (0, at) for s, (_, at) in writer.heard.items()}
                    server.logs._idle(writer)
            else:
                pending.append(asyncio.ensure_future(self._send(server, member)))
                await asyncio.sleep(0)
                if what == "send twice":
                    pending.append(asyncio.ensure_future(self._send(server, member)))
        for task in pending[: len(pending) // 2]:
            await task
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()   # killed: what was not acknowledged may or may not be there
        await asyncio.sleep(0)
        server.close()

    async def _send(self, server: Server, member: Member) -> None:
        start = self._acked
        records = [(stream, at, data) for offset, stream, at, data in self._spool if offset >= start]
        self._acked = max(self._acked, await server.logs.ingest(member, start, records, self._end))

    async def _read(self) -> list[LogLine]:
        server, member = await self._begin()
        await self._send(server, member)
        await server.logs.ended(1, 0, self._end)
        lines, exhausted = server.logs.reading.cursor("ap-1", 0, LogFilter()).next()
        assert exhausted and server.logs.is_drained("ap-1")
        assert [line.seq for line in lines] == sorted({line.seq for line in lines})
        server.close()
        return lines

    async def _begin(self) -> tuple[Server, Member]:
        server = Server(self._config, self._paths, randomness=random.Random(1))
        server.logs.load()
        member = server.world[Member].get((1, 0))
        if member is None:
            member = Member(1, 0, "ta-1", "node-0", "cu-1", "ap-1", "fu-1")
            unit = server.unit()
            unit.put(member)
            await unit.commit()
        return server, member


SERVER = """
import asyncio, random, sys
from pathlib import Path
from phalanx.config import Config
from phalanx.model.cluster import Member
from phalanx.paths import Paths
from phalanx.server.server import Server

async def main():
    server = Server(Config().with_secrets(), Paths(Path(sys.argv[1])), randomness=random.Random(1))
    server.logs.load()
    member = Member(1, 0, "ta-1", "node-0", "cu-1", "ap-1", "fu-1")
    unit = server.unit()
    unit.put(member)
    await unit.commit()
    n = offset = 0
    while True:
        data = b"".join(b"%d\\n" % (n + i) for i in range(50)) + b"unfinished"[: n % 7]
        n += 50
        acked = await server.logs.ingest(member, offset, [(1 + n % 2, n, data)], offset + 13 + len(data))
        offset = acked
        print(acked, n, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_server_killed_while_it_writes_has_all_it_acknowledged(tmp_path: Path, seed: int) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    said = [server.stdout.readline().split() for _ in range(20 + 31 * seed)]
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    said += [line.split() for line in server.stdout.read().splitlines()]
    server.stdout.close()
    acked, count = (int(word) for word in [words for words in said if len(words) == 2][-1])

    async def read() -> tuple[int, bytes]:
        again = Server(Config().with_secrets(), Paths(tmp_path), randomness=random.Random(1))
        again.logs.load()
        had = await again.logs.ingest(again.world[Member][(1, 0)], 0, [], 0)
        lines = await again.logs.reading.fetch("ap-1", 0, 1 << 62, 1_000_000, LogFilter())
        again.close()
        return had, b"".join(line.data for line in lines)

    had, text = asyncio.run(read())
    assert had >= acked
    assert {int(number) for number in re.findall(rb"\d+", text)} >= set(range(count))


def test_a_full_disk_costs_the_oldest_lines_and_says_how_many(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    app_id = control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(app_state=api_pb2.APP_STATE_DETACHED)).app_id
    old = FakeCluster(control_plane, app_id, size=1, number=1, name="old")
    old.write(0, "one\ntwo\nthree\n")
    old.exit(0)
    segments = control_plane.server.logs._segments
    write, full = segments.write, True

    def on_a_full_disk(writes: Any) -> None:
        if full and segments.size(f"{app_id}/1-0.0"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(writes)

    monkeypatch.setattr(segments, "write", on_a_full_disk)
    new = FakeCluster(control_plane, app_id, size=1, number=2, name="new")
    new.write(0, "four\n")
    lines = control_plane.modal("app", "logs", app_id).stdout.splitlines()
    assert lines == ["[phalanx] 3 lines lost: the log space was full, and the oldest went first", "four"]
    assert new.acked[0] == new.spooled(0)


def test_a_purged_app_leaves_no_file_and_no_row(control_plane: ControlPlane) -> None:
    app_id = control_plane.rpc("AppCreate", api_pb2.AppCreateRequest(app_state=api_pb2.APP_STATE_DETACHED)).app_id
    cluster = FakeCluster(control_plane, app_id)
    cluster.write(0, "gone soon\n")
    cluster.end()
    control_plane.change(control_plane.server.logs.forget, app_id)
    assert not (control_plane.paths.logs / app_id).exists()
    assert control_plane.server.world[LogPiece] == {}
