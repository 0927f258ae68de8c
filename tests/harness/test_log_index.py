"""The index of logs finds every rank's new lines, whatever other ranks did since."""

from __future__ import annotations

from phalanx.model.logs import LogPiece
from phalanx.server.log_index import LogIndex


def piece(rank: int, seq: int, last_seq: int, ended: bool = False) -> LogPiece:
    return LogPiece(seq, "ap-1", "fu-1", "cu-1", f"ta-{rank}", 1, rank, f"ap-1/1-{rank}.0", 0, 9, last_seq=last_seq, ended=ended)


def test_a_rank_that_ends_without_a_word_hides_no_other_ranks_last_line():
    index = LogIndex([])
    index.put(piece(0, 1, 10))
    index.put(piece(1, 2, 20))
    index.put(piece(1, 2, 40))                  # its last line
    index.put(piece(0, 1, 10, ended=True))      # the other one only ends
    assert index.sources_after("ap-1", 30) == [(1, 1, "ap-1")]
