"""Frames on disk: whole or not at all, whatever killed the writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.store.segments import LINE, TAIL, Frame, Segments, decode, encode, whole

FRAMES = st.lists(
    st.builds(
        Frame,
        kind=st.sampled_from([LINE, TAIL]),
        stream=st.integers(1, 3),
        seq=st.integers(0, 2**63),
        time_ns=st.integers(0, 2**63),
        data=st.binary(max_size=50),
        ids=st.sampled_from([(), ("fc-1", "in-1"), ("", "in-1"), ("fc-1", "", "fu-1", "ta-1", "cu-1")]),
    ),
    max_size=8,
)


@given(FRAMES)
def test_what_is_written_is_what_is_read(frames: list[Frame]) -> None:
    assert list(decode(b"".join(encode(frame) for frame in frames))) == frames


@given(FRAMES, st.integers(0, 600))
def test_a_torn_tail_costs_only_the_torn_frame(frames: list[Frame], at: int) -> None:
    data = b"".join(encode(frame) for frame in frames)[:at]
    read = list(decode(data))
    assert read == frames[: len(read)]
    assert whole(data) == sum(len(encode(frame)) for frame in read)


@given(FRAMES.filter(bool), st.data())
def test_a_damaged_byte_ends_the_reading_before_it(frames: list[Frame], choice: st.DataObject) -> None:
    data = bytearray(b"".join(encode(frame) for frame in frames))
    at = choice.draw(st.integers(0, len(data) - 1))
    data[at] ^= 0xFF
    read = list(decode(bytes(data)))
    assert read == frames[: len(read)] and len(read) < len(frames)


def test_a_write_may_be_repeated(tmp_path: Path) -> None:
    segments = Segments(tmp_path, sync=True)
    frame = encode(Frame(LINE, 1, 1, 1, b"one\n"))
    for _ in range(2):
        segments.write([("ap-1/1-0.0", 0, frame), ("ap-1/1-0.0", len(frame), frame), ("ap-1/1-1.0", 0, frame)])
    assert segments.size("ap-1/1-0.0") == 2 * len(frame)
    assert segments.names() == {"ap-1/1-0.0", "ap-1/1-1.0"}
    segments.drop("ap-1/1-0.0")
    segments.drop("ap-1/1-1.0")
    assert list(tmp_path.iterdir()) == []
    assert segments.read("ap-1/1-0.0", 0, 10) == b""


WRITER = """
import sys
from pathlib import Path
from phalanx.store.segments import LINE, Frame, Segments, encode
segments, offset, n = Segments(Path(sys.argv[1]), sync=True), 0, 0
while True:
    data = encode(Frame(LINE, 1, n, n, b"x" * 100_000))
    segments.write([("ap-1/1-0.0", offset, data)])
    offset, n = offset + len(data), n + 1
    print(n, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 7, 20])
def test_after_kill_9_everything_acknowledged_is_readable(tmp_path: Path, acknowledged: int) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(acknowledged):
        writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    segments = Segments(tmp_path, sync=True)
    data = segments.read("ap-1/1-0.0", 0, segments.size("ap-1/1-0.0"))
    frames = list(decode(data))
    assert len(frames) >= acknowledged
    assert [frame.seq for frame in frames] == list(range(len(frames)))
    segments.cut("ap-1/1-0.0", whole(data))
    assert segments.size("ap-1/1-0.0") == whole(data)
