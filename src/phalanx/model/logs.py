"""The index of log segments: the lines themselves are not rows (design rule 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

STDOUT, STDERR, SYSTEM = 1, 2, 3
"""As api_pb2.FileDescriptor and the agent protocol number them. SYSTEM: what Phalanx itself says."""


@dataclass
class LogPiece:
    """A run of frames of one rank in its segment file. It grows until it is full. `seq` orders all pieces and lines of all apps."""

    KEY: ClassVar = ("seq",)

    seq: int
    app_id: str
    function_id: str
    cluster_id: str
    task_id: str
    assignment: int             # 0: written by the server itself
    rank: int
    segment: str                # file name below the log folder
    start: int                  # byte range in the segment
    end: int
    first_ns: int = 0           # earliest and latest line
    last_ns: int = 0
    spool_end: int = 0          # the shim's spool offset that this piece reaches
    last_seq: int = 0           # of the last line in it
    lines: int = 0
    lost_before: int = 0        # lines of this rank that stood before this piece and were dropped for want of space
    ended: bool = False         # the rank is gone and everything it wrote is here


@dataclass(frozen=True)
class LogLine:
    """One line as it is shown, with its end; or a part of one, without: a line that went on for more than a MiB, or paused."""

    seq: int
    time_ns: int
    stream: int
    data: bytes
    app_id: str = ""
    function_id: str = ""
    cluster_id: str = ""
    task_id: str = ""
    assignment: int = 0
    rank: int = 0
    call_id: str = ""
    input_id: str = ""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    @property
    def is_open(self) -> bool:
        """The line has no end: what comes next from the same rank and stream goes on with it."""
        return not self.data.endswith((b"\n", b"\r"))


@dataclass(frozen=True)
class LogFilter:
    """Which lines a reader wants; an empty field takes all."""

    stream: int = 0
    function_ids: frozenset[str] = frozenset()
    task_id: str = ""
    cluster_id: str = ""
    rank: int | None = None
    call_id: str = ""
    input_id: str = ""
    search: str = ""

    def takes(self, line: LogLine) -> bool:
        return (
            (not self.stream or line.stream == self.stream)
            and (not self.function_ids or line.function_id in self.function_ids)
            and (not self.task_id or line.task_id == self.task_id)
            and (not self.cluster_id or line.cluster_id == self.cluster_id)
            and (self.rank is None or (line.assignment > 0 and line.rank == self.rank))
            and (not self.call_id or line.call_id == self.call_id)
            and (not self.input_id or line.input_id == self.input_id)
            and (not self.search or self.search in line.text)
        )
