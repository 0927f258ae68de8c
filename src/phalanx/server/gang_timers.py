"""The clocks of gangs: armed as the machines ask, and again after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core import events as ev
from phalanx.core.gang import Gang
from phalanx.model.cluster import Phase

if TYPE_CHECKING:
    from phalanx.server.server import Server


class GangTimers:
    def __init__(self, server: Server) -> None:
        self._server = server

    def arm(self, assignment: int, timer: ev.SetTimer) -> None:
        """Tell the machine when the time is over. One whose reason is gone by then changes nothing there."""
        fired = ev.TimerFired(timer.name, timer.input_id, timer.attempt)

        def fire() -> None:
            self._server.act(lambda unit: self._server.gangs.dispatch(unit, assignment, fired))

        self._server.clock.call_after(timer.delay_ms, fire)

    def arm_again(self, gang: Gang) -> None:
        """After a restart: time-outs count from the server's own return, so that its absence is charged to nobody."""
        assignment, policy = gang.assignment, gang.policy
        if assignment.phase == Phase.PREPARING:
            self._arm(gang, "prepare", policy.prepare_timeout_ms)
        if assignment.phase == Phase.STARTING:
            self._arm(gang, "hello", policy.hello_timeout_ms)
        if assignment.phase == Phase.RUNNING and any(gang.is_beginning(m.rank) for m in gang.members):
            self._arm(gang, "startup", assignment.startup_timeout_ms)
        if assignment.phase == Phase.ENDING:
            self.arm(assignment.assignment, ev.SetTimer("linger", policy.linger_ms))
        if assignment.draining and not gang.open:
            self.arm(assignment.assignment, ev.SetTimer("drain", policy.grace_ms))
        for attempt in gang.open:
            own = (attempt.input_id, attempt.attempt)
            if attempt.fetched:
                self._arm(gang, "timeout" if len(attempt.fetched) == assignment.size else "take", assignment.timeout_ms, *own)
            if attempt.cancelling:
                self.arm(assignment.assignment, ev.SetTimer("cancel", policy.grace_ms, *own))
            elif 0 in attempt.results and policy.in_step:
                self.arm(assignment.assignment, ev.SetTimer("finish", policy.finish_window_ms, *own))

    def _arm(self, gang: Gang, name: str, limit_ms: int, input_id: str = "", attempt: int = 0) -> None:
        """A limit of 0 is none."""
        if limit_ms:
            self.arm(gang.assignment.assignment, ev.SetTimer(name, limit_ms, input_id, attempt))
