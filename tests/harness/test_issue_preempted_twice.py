"""The app's log said "cluster cu-… was preempted: preempted: its nodes are wanted by …"."""

from __future__ import annotations

from typing import Any

from tests.harness.callers import Caller
from tests.harness.control_plane import ControlPlane
from tests.harness.test_attempts import log_lines
from tests.harness.waiting import until
from tests.harness.working import Work, function


def test_the_log_says_once_that_a_cluster_was_preempted(control_plane: ControlPlane, fleet: Any) -> None:
    work = Work(fleet(2))
    caller = Caller(control_plane)
    caller.call(function(caller, "low", 2, priority=-1))
    until(lambda: work.begun("low") == 2)
    control_plane.advance(600_000)
    caller.call(function(caller, "high", 2, priority=10))
    until(lambda: work.begun("high") == 2)
    [line] = [line for line in log_lines(control_plane, caller.app_id) if "was preempted" in line]
    assert line.endswith(" was preempted: its nodes are wanted by high, of priority 10")
