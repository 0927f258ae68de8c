"""The index of log segments: the lines themselves are not rows (design rule 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass
class LogPiece:
    """One run of records of one rank, appended to its segment file in one go. `seq` orders all pieces of all apps."""

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
    first_ns: int = 0
    last_ns: int = 0
    spool_end: int = 0          # the shim's spool offset that this piece reaches
