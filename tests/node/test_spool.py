"""A container's output on disk: in order, across segments, acknowledged and dropped from the front only."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

from phalanx.node import spool
from phalanx.node.spool import STDERR, STDOUT, SYSTEM, SpoolWriter


def written(folder, offset=0):
    return [(record.stream, record.data) for record in spool.read(str(folder), offset)]


def test_records_come_back_in_order_from_any_offset(tmp_path):
    writer = SpoolWriter(str(tmp_path), limit=1 << 20)
    for index in range(5):
        writer.append(STDOUT if index % 2 == 0 else STDERR, index, b"line %d\n" % index)
    everything = list(spool.read(str(tmp_path), 0))
    assert [record.data for record in everything] == [b"line %d\n" % index for index in range(5)]
    assert [record.stream for record in everything] == [1, 2, 1, 2, 1]
    assert [record.data for record in spool.read(str(tmp_path), everything[2].offset)] == [b"line 2\n", b"line 3\n", b"line 4\n"]
    assert writer.end == everything[-1].end == spool.end_offset(str(tmp_path))
    assert not list(spool.read(str(tmp_path), writer.end))


def test_acknowledged_segments_are_deleted_and_offsets_stay(tmp_path):
    writer = SpoolWriter(str(tmp_path), limit=1 << 20, segment=64)
    for index in range(10):
        writer.append(STDOUT, 0, b"x" * 40 + b"%d\n" % index)
    records = list(spool.read(str(tmp_path), 0))
    assert len(spool.segments(str(tmp_path))) == 5
    writer.acknowledge(records[5].offset)
    assert spool.segments(str(tmp_path))[0] == records[4].offset
    assert [r.offset for r in spool.read(str(tmp_path), records[5].offset)] == [r.offset for r in records[5:]]
    writer.acknowledge(writer.end)
    assert len(spool.segments(str(tmp_path))) == 1      # the one that is being written


def test_a_half_written_record_is_not_read_and_written_over(tmp_path):
    """The shim was killed in the middle of a write."""
    writer = SpoolWriter(str(tmp_path), limit=1 << 20)
    writer.append(STDOUT, 0, b"whole\n")
    path = tmp_path / os.listdir(tmp_path)[0]
    path.write_bytes(path.read_bytes() + b"\x01half")
    assert written(tmp_path) == [(STDOUT, b"whole\n")]
    assert spool.end_offset(str(tmp_path)) == writer.end


def test_more_than_the_limit_costs_the_oldest_and_says_how_many_lines(tmp_path):
    writer = SpoolWriter(str(tmp_path), limit=1000, segment=200)
    for index in range(100):
        writer.append(STDOUT, index, b"%03d %s\n" % (index, b"x" * 30))
    kept = written(tmp_path)
    lines = [data for stream, data in kept if stream == STDOUT]
    assert lines[-1].startswith(b"099")
    lost = sum(int(data.split()[0]) for stream, data in kept if stream == SYSTEM)
    told_and_dropped = 100 - len(lines)
    assert 0 < lost <= told_and_dropped
    assert spool.end_offset(str(tmp_path)) - spool.segments(str(tmp_path))[0] <= 1200


def test_a_full_disk_loses_lines_and_says_so(tmp_path):
    """RLIMIT_FSIZE stands for the disk: a write beyond it fails as one on a full disk does."""
    code = """
import resource, signal, sys
from phalanx.node.spool import SpoolWriter, STDOUT
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = SpoolWriter(sys.argv[1], 1 << 20)
writer.append(STDOUT, 0, b"before\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
writer.append(STDOUT, 0, b"one\\ntwo\\nthree\\n" * 10)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.append(STDOUT, 0, b"after\\n")
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert written(tmp_path) == [
        (STDOUT, b"before\n"), (SYSTEM, b"30 lines lost: the log's disk is full\n"), (STDOUT, b"after\n")]
