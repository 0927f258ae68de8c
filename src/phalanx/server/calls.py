"""Calls, inputs and their decided outputs."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from modal_proto import api_pb2

from phalanx.core import events as ev
from phalanx.core.gang import Gang
from phalanx.core.states import move_call, move_input
from phalanx.model.app import App
from phalanx.model.cluster import Cause, Failure, RankResult
from phalanx.model.refusal import Refusal, RefusalKind, not_found
from phalanx.model.work import Call, CallState, Chunk, Function, Input, InputState, Output
from phalanx.server import results
from phalanx.server.gangs import STOPPED_APP_STATES
from phalanx.server.retrying import Retrying
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

MOST_WAITING = 25_000           # inputs of one function, as documented (platform-behaviour.md 6); spawned ones 1,000,000
MOST_SPAWNED = 1_000_000
LAST_LINES = 5                  # of a rank's log, in the error that its end is told with
_SILENT = (Cause.OOM, Cause.SIGNAL, Cause.EXIT, Cause.TIMEOUT)      # ends without an exception: the log may say more


class Calls:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.retrying = Retrying(server)
        self._outputs: dict[str, list[Output]] = {}     # call id -> decided outputs, by seq
        self._inputs: dict[str, list[Input]] = {}       # call id -> inputs
        self._chunks: dict[str, int] = {}               # call id -> chunks so far
        self._open: dict[str, set[str]] = {}            # app id -> calls of which an input is not decided

    def load(self) -> None:
        world = self._server.world
        world.watch(Call, self._look_whether_open)
        for call in world[Call].values():
            self._look_whether_open(call)
        for item in world[Input].values():
            self._inputs.setdefault(item.call_id, []).append(item)
        for output in sorted(world[Output].values(), key=lambda o: o.seq):
            self._outputs.setdefault(output.call_id, []).append(output)
        for chunk in world[Chunk].values():
            self._chunks[chunk.call_id] = max(self._chunks.get(chunk.call_id, 0), chunk.index)

    def forget(self, call_ids: set[str]) -> None:
        """Their rows are gone."""
        for table in (self._outputs, self._inputs, self._chunks):
            for call_id in call_ids:
                table.pop(call_id, None)  # type: ignore[attr-defined]

    # ------------------------------------------------------------ what the client asks

    def get(self, call_id: str) -> Call:
        call: Call | None = self._server.world[Call].get(call_id)
        if call is None:
            raise not_found("function call", call_id, "Decided calls are kept for a week, or result_retention_s of the configuration")
        return call

    def create(self, unit: Unit, function_id: str, kind: int, invocation: int, parent_input_id: str, return_exceptions: bool) -> Call:
        """A new call. Returns at once: placing it happens behind."""
        function: Function | None = self._server.world[Function].get(function_id)
        if function is None:
            raise not_found("function", function_id, "Its app may have been stopped, or belongs to another server")
        self._check_app(function.app_id)
        call = Call(
            self._server.new_id("fc"), function_id, function.app_id, kind, invocation, parent_input_id, return_exceptions,
            inputs_finished=kind == api_pb2.FUNCTION_CALL_TYPE_UNARY, created_ms=self._server.now_ms(),
        )  # fmt: skip
        unit.put(call)
        return call

    def put_inputs(self, unit: Unit, call: Call, payloads: list[tuple[int, bytes]]) -> list[Input]:
        """Add inputs (index, serialized FunctionInput) to a call's queue."""
        if call.state != CallState.OPEN:
            raise Refusal(RefusalKind.CONFLICT, f"call {call.call_id} was cancelled: it takes no more inputs")
        self._check_app(call.app_id)
        self.check_room(call.function_id, call.invocation, len(payloads))
        pool = self._server.gangs.pool(call.function_id)
        items = []
        for idx, payload in payloads:
            item = Input(self._server.new_id("in"), call.call_id, call.function_id, idx, payload, created_ms=self._server.now_ms())
            item.queued_ms = item.created_ms
            unit.put(item)
            self._inputs.setdefault(call.call_id, []).append(item)
            pool.add(item)
            items.append(item)
        call.num_inputs += len(items)
        unit.put(call)
        self._wake_clusters(call.function_id)       # at once: their leases are later units, on disk with this one and never before it
        unit.after(self._server.planning.soon)
        return items

    def check_room(self, function_id: str, invocation: int, more: int) -> None:
        """Refuses inputs beyond what may wait of one function."""
        pool = self._server.gangs.pools.get(function_id)
        waiting = len(pool.waiting) if pool else 0
        most = MOST_SPAWNED if invocation == api_pb2.FUNCTION_CALL_INVOCATION_TYPE_ASYNC else MOST_WAITING
        if waiting + more > most:
            sentence = f"{waiting} inputs of this function wait already, and {most} is the limit: try again later"
            raise Refusal(RefusalKind.EXHAUSTED, sentence)

    def _check_app(self, app_id: str) -> None:
        app: App = self._server.world[App][app_id]
        if app.state in STOPPED_APP_STATES:
            raise Refusal(RefusalKind.CONFLICT, f"app '{app.name or app.description}' is stopped: it takes no more calls")

    def finish_inputs(self, unit: Unit, call: Call) -> None:
        call.inputs_finished = True
        unit.put(call)
        self._close_if_done(unit, call)

    def has_open(self, app_id: str) -> bool:
        """Is an input of the app not decided?"""
        return app_id in self._open

    def inputs_of(self, call_id: str) -> list[Input]:
        return self._inputs.get(call_id, [])

    def outputs_after(self, call_id: str, seq: int) -> list[Output]:
        outputs = self._outputs.get(call_id, [])
        return outputs[bisect_right(outputs, seq, key=lambda output: output.seq) :]     # a large map asks a thousand times

    def chunks_after(self, call_id: str, index: int) -> list[Chunk]:
        last = self._chunks.get(call_id, 0)
        chunks = self._server.world[Chunk]
        return [chunks[call_id, at] for at in range(index + 1, last + 1) if (call_id, at) in chunks]

    def add_chunks(self, unit: Unit, call_id: str, chunks: list[tuple[int, bytes]]) -> None:
        """A generator's data, numbered from 1; what is there already is not added again."""
        for index, payload in chunks:
            if index > self._chunks.get(call_id, 0):
                unit.put(Chunk(call_id, index, payload))
                self._chunks[call_id] = index
        unit.after(lambda: self._server.topics.wake(("chunks", call_id)))

    def cancel(self, unit: Unit, call: Call, terminate: bool) -> None:
        """Cancel what is not decided. The call is "cancelling" until every rank is done with it (case 82)."""
        if call.state == CallState.DONE:
            return
        if call.state == CallState.OPEN:
            move_call(call, CallState.CANCELLING)
        call.inputs_finished = True
        unit.put(call)
        for item in list(self.inputs_of(call.call_id)):
            if item.state == InputState.PENDING:
                self.terminate_waiting(unit, item, "the call was cancelled")
            elif item.state == InputState.RUNNING:
                move_input(item, InputState.CANCELLING)
                unit.put(item)
                self._server.gangs.dispatch(unit, item.assignment, ev.CancelAsked(item.input_id, terminate))
        self._close_if_done(unit, call)

    # ------------------------------------------------------------ what the gangs decided

    def decide(self, unit: Unit, gang: Gang, decision: ev.Decide) -> None:
        """Write the output of an input, or, after a user's failure with retries left, put it back in its place."""
        item: Input = self._server.world[Input][decision.input_id]
        if item.state == InputState.DONE or item.attempt != decision.attempt:
            return
        may_retry = decision.status == "failed" and item.state == InputState.RUNNING and not self._stopped(item)
        if may_retry and self.retrying.retry(unit, item, _sentence(decision)):
            return
        if decision.status == "ok":
            function: Function = self._server.world[Function][item.function_id]
            self._server.planning.ran(function, max(1, self._server.now_ms() - item.started_ms))
        self._write(unit, item, self._result(gang, decision), gang.members[0].task_id)

    def requeue(self, unit: Unit, item: Input, end: ev.Requeue) -> None:
        """Not its fault: back to its place in the queue, from a budget of its own where one is charged."""
        if self._stopped(item):     # nothing would take it from the queue
            told = f"its app was stopped, after this: {end.sentence}" if end.charged else end.sentence
            self._write(unit, item, results.terminated(told), "")
        elif not end.charged:
            self.retrying.again(unit, item, end.sentence)
        elif not self.retrying.restart(unit, item, end.sentence, end.nodes):
            self._give_up(unit, item, end.sentence)

    def start_failed(self, unit: Unit, item: Input, sentence: str, nodes: tuple[str, ...]) -> None:
        """The cluster that was to take this input did not come up. It counts as an attempt: a start may fail each time."""
        self._server.gangs.pool(item.function_id).remove(item)
        item.attempt += 1
        if not self.retrying.restart(unit, item, sentence, nodes):
            self._give_up(unit, item, sentence)

    def terminate_waiting(self, unit: Unit, item: Input, sentence: str) -> None:
        self._end_waiting(unit, item, results.terminated(sentence))

    def waited_too_long(self, unit: Unit, item: Input, failure: Failure) -> None:
        """Its queue deadline has passed. No budget pays for another wait."""
        self._end_waiting(unit, item, results.failed(failure, []))

    def _end_waiting(self, unit: Unit, item: Input, result: RankResult) -> None:
        self._server.gangs.pool(item.function_id).remove(item)
        self._write(unit, item, result, "")
        unit.after(self._server.planning.soon)      # what was to start for it need not, and it is shown as waiting no more

    def fail_waiting(self, unit: Unit, gang: Gang, failure: Failure) -> None:
        """User code failed before it took an input: an attempt of every input that could have been it."""
        pool = self._server.gangs.pool(gang.assignment.function_id)
        waiting = pool.ready(self._server.world[Input], self._server.now_ms())
        lines = self._last_lines(gang, failure) if waiting else []
        for item in waiting:
            pool.remove(item)
            item.attempt += 1
            if not self.retrying.retry(unit, item, failure.sentence, say=len(waiting) == 1):
                self._write(unit, item, results.failed(failure, lines), "")

    def _give_up(self, unit: Unit, item: Input, sentence: str) -> None:
        budget = self._server.config.infra_retries
        told = f"gave up after {budget} restarts that were not the program's fault (infra_retries in the configuration)"
        why = f"{told}; the last: {sentence}"
        self._write(unit, item, results.given_up(why), "")

    def _result(self, gang: Gang, decision: ev.Decide) -> RankResult:
        if decision.status == "terminated":
            return results.terminated(decision.failure.sentence if decision.failure is not None else "")
        if decision.result is not None:
            return decision.result
        assert decision.failure is not None
        return results.failed(decision.failure, self._last_lines(gang, decision.failure))

    def _last_lines(self, gang: Gang, failure: Failure) -> list[str]:
        """What the rank said before it ended; its agent sent all of it before it reported the end."""
        if failure.cause not in _SILENT:
            return []
        source = (gang.assignment.assignment, failure.rank, gang.assignment.app_id)
        return self._server.logs.reading.last_of(source, LAST_LINES)

    def _stopped(self, item: Input) -> bool:
        app: App = self._server.world[App][self._server.world[Call][item.call_id].app_id]
        return app.state in STOPPED_APP_STATES

    def _write(self, unit: Unit, item: Input, result: RankResult, task_id: str) -> None:
        call: Call = self._server.world[Call][item.call_id]
        outputs = self._outputs.setdefault(item.call_id, [])
        now_s = self._server.now_ms() / 1000
        output = Output(
            item.input_id, item.call_id, item.idx, len(outputs) + 1, result.result, result.data_format, task_id,
            result.started_s or now_s, result.created_s or now_s,
        )  # fmt: skip
        move_input(item, InputState.DONE)
        item.payload = b""
        unit.put(item)
        unit.put(output)
        outputs.append(output)
        call.num_outputs += 1
        unit.put(call)
        self._close_if_done(unit, call)
        self._server.apps.input_decided(unit, call.app_id)
        unit.after(lambda: self._server.topics.wake(("outputs", call.call_id)))
        unit.after(lambda: self._server.topics.wake(("chunks", call.call_id)))

    def _look_whether_open(self, call: Call) -> None:
        """It was put, with its counts, or deleted."""
        open_calls = self._open.setdefault(call.app_id, set())
        if call.num_outputs < call.num_inputs and call.call_id in self._server.world[Call]:
            open_calls.add(call.call_id)
            return
        open_calls.discard(call.call_id)
        if not open_calls:
            del self._open[call.app_id]

    def _close_if_done(self, unit: Unit, call: Call) -> None:
        if call.inputs_finished and call.num_outputs >= call.num_inputs and call.state != CallState.DONE:
            move_call(call, CallState.DONE)
            unit.put(call)

    def work_arrived(self, function_id: str) -> None:
        """Inputs of the function may be taken: by its clusters, or by new ones."""
        self._wake_clusters(function_id)
        self._server.planning.soon()

    def _wake_clusters(self, function_id: str) -> None:
        for number in self._server.gangs.pool(function_id).gangs:
            self._server.topics.wake(("gang", number))


def _sentence(decision: ev.Decide) -> str:
    if decision.failure is not None:
        return decision.failure.sentence
    return decision.result.sentence if decision.result else ""
