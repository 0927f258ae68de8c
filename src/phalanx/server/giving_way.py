"""Between two inputs a cluster may have to give its nodes to a call that came before the next one (scheduler/give_way.py says who).

The planner's word counts as long as its plan is the latest; it is carried out at the moment when the next input would be taken,
never in the middle of one, and not before the cluster had its turn: a warm cluster is worth something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from phalanx.core import events as ev
from phalanx.core.gang import Gang
from phalanx.model.cluster import Cause
from phalanx.model.plan import GiveWay
from phalanx.model.work import Function, Input, InputState
from phalanx.server.snapshot import priority_of
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server


@dataclass(frozen=True, slots=True)
class _Due:
    """One word of the planner, as it concerns one cluster."""

    input_id: str       # who comes first
    way: GiveWay
    from_ms: int        # before this another input will be done in time


class GivingWay:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._due: dict[int, list[_Due]] = {}       # assignment -> whom it may give way to, the first in the queue first
        self._begun: dict[str, GiveWay] = {}        # input -> the one of several ways that is being gone since the latest plan

    def planned(self, ways: Iterable[GiveWay], inputs: Mapping[str, str]) -> None:
        """A new plan: what the last one said is over. `inputs`: request id -> the input it is for."""
        self._due, self._begun = {}, {}
        for way in ways:
            for holder, from_ms in zip_longest(way.holders, way.from_ms, fillvalue=0):
                number = self._server.planning.fleet.assignments.get(str(holder))
                if number is not None and way.for_request in inputs:
                    self._due.setdefault(number, []).append(_Due(inputs[way.for_request], way, int(from_ms)))

    def instead_of(self, unit: Unit, gang: Gang, item: Input) -> bool:
        """Does the cluster end here, so that this input, its next, stays in the queue?"""
        for due in self._due.get(gang.assignment.assignment, ()):
            waiting: Input | None = self._server.world[Input].get(due.input_id)
            if waiting is None or waiting.state != InputState.PENDING or self._server.now_ms() < due.from_ms:
                continue
            if self._begun.get(due.input_id, due.way) == due.way and self._is_over(gang, waiting, item):
                self._begun[due.input_id] = due.way
                self._give(unit, gang, waiting)
                return True
        return False

    def _is_over(self, gang: Gang, waiting: Input, item: Input) -> bool:
        """The cluster's turn, against this call. Higher priority need not wait for its end."""
        functions = self._server.world[Function]
        theirs, mine = (priority_of(functions[each.function_id]) for each in (waiting, item))
        if theirs != mine:
            return theirs > mine
        return waiting.created_ms < item.created_ms and self._server.now_ms() >= turn_ends_ms(self._server, gang)

    def _give(self, unit: Unit, gang: Gang, waiting: Input) -> None:
        server, assignment = self._server, gang.assignment
        name = server.world[Function][waiting.function_id].name
        sentence = f"its turn was over, and its nodes go to {name}, which came before its next input"
        server.retentions.for_victims(unit, waiting, {assignment.cluster_id: [m.node_id for m in gang.members]})
        server.gangs.dispatch(unit, assignment.assignment, ev.StopAsked(Cause.IDLE, sentence, graceful=True))
        if assignment.clustered:
            line = f"cluster {assignment.cluster_id} ended between two inputs: {sentence}"
            server.logs.system_line(unit, assignment.app_id, assignment.function_id, line, cluster_id=assignment.cluster_id)
        unit.after(server.planning.soon)


def turn_ends_ms(server: Server, gang: Gang) -> int:
    """A cluster goes on with inputs at least this long: what the configuration says, and what it took to come up, so that no more than half
    of a node's time goes into starts however long they take. One that was started past somebody who waited already has no such right:
    of a function with plain containers a new one would begin before the last one's turn is over, and so on for ever."""
    assignment = gang.assignment
    if assignment.out_of_turn:
        return 0
    if not assignment.first_input_ms:
        return assignment.created_ms + server.config.turn_ms     # as far as is known
    up_ms = assignment.up_ms or assignment.running_ms       # a rank may have an input before all are up
    return assignment.first_input_ms + max(server.config.turn_ms, up_ms - assignment.created_ms)
