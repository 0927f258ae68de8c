"""What a program and its user are told of a failed attempt, over real containers (docs/attempts.md)."""

from __future__ import annotations

import re

import pytest

from tests.end_to_end.live import Live

pytestmark = pytest.mark.root


def test_case_47_92_a_rank_that_dies_is_named_and_not_the_one_whose_socket_closed(live: Live) -> None:
    ended = live.program("attempts.py")
    attempt, last_end = ended.said["second"]
    assert attempt == "2" and re.fullmatch(r"rank 1 on node node-\d+ exited with code 3", last_end)
    own, *told = ended.said["never"].splitlines()
    assert re.fullmatch(r"rank 1 on node node-\d+ exited with code 3", own)
    assert told[:4] == ["last lines of its log:", "  step 0", "  step 1", "  step 2"]
    assert re.match(r"rank 0 \(node-\d+\): running the input", told[4])
    said = r"attempt 2 of call fc-\w+: attempt 1 ended because rank 1 .* exited with code 3; retry 1 of 1"
    assert any(re.search(said, line) for line in ended.out.splitlines())
