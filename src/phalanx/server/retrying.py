"""Inputs that run again: which budget pays, after which delay, on which nodes not, and what the user is told (core/budgets.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core.budgets import excluded_after, restart_delay_ms, retry_delay_ms
from phalanx.core.states import move_input
from phalanx.model.reasons import duration
from phalanx.model.work import Call, Function, Input, InputState
from phalanx.scheduler.backoff import requeue_at_ms
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server


LAST_END_SHOWN = 1_000      # characters


class Retrying:
    def __init__(self, server: Server) -> None:
        self._server = server

    def retry(self, unit: Unit, item: Input, sentence: str, say: bool = True) -> bool:
        """After a failure of the user's code. False: none of the user's retries is left."""
        function: Function = self._server.world[Function][item.function_id]
        if item.user_failures >= function.retries:
            return False
        item.user_failures += 1
        delay_ms = max(retry_delay_ms(function, item.user_failures), requeue_at_ms(0, item.evictions))
        if say:
            self._say(unit, item, sentence, f"retry {item.user_failures} of {function.retries}, {_in(delay_ms)}")
        self._back_in_queue(unit, item, sentence, delay_ms)
        return True

    def restart(self, unit: Unit, item: Input, sentence: str, nodes: tuple[str, ...]) -> bool:
        """After a failure that was not the program's. False: that budget is used up."""
        budget = self._server.config.infra_retries
        item.infra_failures += 1
        if item.infra_failures > budget:
            return False
        item.excluded_nodes = excluded_after(item.excluded_nodes, nodes)
        delay_ms = max(restart_delay_ms(item.infra_failures), requeue_at_ms(0, item.evictions))
        avoids = f", not on {', '.join(nodes)}" if nodes else ""
        self._say(unit, item, sentence, f"restart {item.infra_failures} of {budget} by no fault of the program, {_in(delay_ms)}{avoids}")
        self._back_in_queue(unit, item, sentence, delay_ms)
        return True

    def again(self, unit: Unit, item: Input, sentence: str) -> None:
        """Its cluster was stopped for something else: no budget pays."""
        item.unpaid_restarts += 1
        self._say(unit, item, sentence, "it runs again")
        self._back_in_queue(unit, item, sentence, 0)

    def look_later(self, function_id: str, delay_ms: int) -> None:
        """A retry's delay ends then, and nothing else says so."""
        self._server.clock.call_after(delay_ms, lambda: self._server.calls.work_arrived(function_id))

    def _say(self, unit: Unit, item: Input, sentence: str, what_follows: str) -> None:
        call: Call = self._server.world[Call][item.call_id]
        which = f"input {item.idx} of call {call.call_id}" if call.num_inputs > 1 else f"call {call.call_id}"
        text = f"attempt {item.attempt + 1} of {which}: attempt {item.attempt} ended because {_first_line(sentence)}; {what_follows}"
        if pieces := len(self._server.calls.chunks_after(call.call_id, 0)):
            text += f"; its caller has {pieces} pieces of the generator, and gets the new attempt's from piece {pieces + 1} on"
        self._server.logs.system_line(unit, call.app_id, item.function_id, text, call_id=call.call_id, input_id=item.input_id)

    def _back_in_queue(self, unit: Unit, item: Input, sentence: str, delay_ms: int) -> None:
        """Its place, which is its first arrival, it keeps."""
        if item.state != InputState.PENDING:    # it was, where a start failed that was for it
            move_input(item, InputState.PENDING)
        item.last_end = _first_line(sentence)
        item.not_before_ms = self._server.now_ms() + delay_ms if delay_ms else 0
        item.queued_ms = self._server.now_ms() + delay_ms
        unit.put(item)
        self._server.gangs.pool(item.function_id).add(item)
        unit.after(lambda: self._server.calls.work_arrived(item.function_id))
        if delay_ms:
            unit.after(lambda: self.look_later(item.function_id, delay_ms + 1))


def _first_line(sentence: str) -> str:
    """It becomes a variable of the next container's environment, where much text, or a NUL, would keep it from starting."""
    return (sentence.splitlines() or ["it was stopped"])[0].replace("\0", "")[:LAST_END_SHOWN]


def _in(delay_ms: int) -> str:
    return f"in {duration(delay_ms)}" if delay_ms else "at once"
