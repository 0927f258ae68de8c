"""Calls, inputs and outputs, as the caller sees them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from phalanx.model.caller import Caller
from phalanx.model.refusal import not_found
from phalanx.model.work import Call, CallState, Chunk, Function, Input, InputState, Output
from phalanx.server.server import Server
from phalanx.server.unit import Unit

LONGEST_POLL_S = 55.0
MOST_OUTSTANDING = 1000
MOST_LISTED = 100
LOGS_FIRST_S = 1.0
Result = api_pb2.GenericResult
SUCCESS = Result.GENERIC_STATUS_SUCCESS


class Calls:
    def __init__(self, server: Server) -> None:
        self._server = server

    # ------------------------------------------------------------ making a call

    def FunctionMap(self, request: Any, caller: Caller, unit: Unit) -> Any:
        self._server.calls.check_room(request.function_id, request.function_call_invocation_type, len(request.pipelined_inputs))
        call = self._server.calls.create(
            unit, request.function_id, request.function_call_type, request.function_call_invocation_type,
            request.parent_input_id, request.return_exceptions,
        )  # fmt: skip
        items = self._put(unit, call, request.pipelined_inputs)
        function: Function = self._server.world[Function][call.function_id]
        return api_pb2.FunctionMapResponse(
            function_call_id=call.call_id, pipelined_inputs=items, function_call_jwt=call.call_id, sync_client_retries_enabled=False,
            max_inputs_outstanding=MOST_OUTSTANDING, retry_policy=_retry_policy(function),
        )  # fmt: skip

    def FunctionPutInputs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        call = self._server.calls.get(request.function_call_id)
        return api_pb2.FunctionPutInputsResponse(inputs=self._put(unit, call, request.inputs))

    def FunctionFinishInputs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        self._server.calls.finish_inputs(unit, self._server.calls.get(request.function_call_id))
        return Empty()

    def FunctionRetryInputs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Clients ask for this only where the server told them to retry by themselves, which it does not."""
        return api_pb2.FunctionRetryInputsResponse(input_jwts=[item.input_jwt for item in request.inputs])

    def _put(self, unit: Unit, call: Call, items: Any) -> list[Any]:
        made = self._server.calls.put_inputs(unit, call, [(item.idx, item.input.SerializeToString()) for item in items])
        return [api_pb2.FunctionPutInputsResponseItem(input_id=item.input_id, idx=item.idx, input_jwt=item.input_id) for item in made]

    # ------------------------------------------------------------ its results

    async def FunctionGetOutputs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Decided outputs after `last_entry_id`, at once when there are some, empty at the time-out."""
        call = self._server.calls.get(request.function_call_id)
        after = _seq(request.last_entry_id)
        ends = time.monotonic() + min(request.timeout, LONGEST_POLL_S)
        ranged = _range(request)
        while True:
            outputs = self._server.calls.outputs_after(call.call_id, after)
            if ranged is not None:
                outputs = [output for output in outputs if ranged[0] <= output.idx <= ranged[1]]
            left = ends - time.monotonic()
            if outputs or left <= 0:
                break
            await self._server.topics.wait(("outputs", call.call_id), left)
        if outputs and self._server.log_marks.is_watched(call.app_id):     # what ranks printed before they returned comes before it
            items = [self._server.world[Input].get(output.input_id) for output in outputs]
            await self._server.logs.settle(LOGS_FIRST_S)
            await self._server.log_marks.settle(call.app_id, {item.assignment for item in items if item is not None})
        most = request.max_values or len(outputs)
        outputs = outputs[:most]
        last = f"{outputs[-1].seq}-0" if outputs else (request.last_entry_id or "0-0")
        return api_pb2.FunctionGetOutputsResponse(
            idxs=[output.idx for output in outputs], outputs=[_output(output) for output in outputs], last_entry_id=last,
            num_unfinished_inputs=call.num_inputs - call.num_outputs,
        )  # fmt: skip

    async def FunctionCallGetDataOut(self, request: Any, caller: Caller) -> AsyncIterator[Any]:
        """A generator's data from `last_index` on, until the call is decided and all is sent, or a time-out: the client resumes."""
        call_id = request.function_call_id or self._call_of_attempt(getattr(request, "attempt_token", ""))
        call = self._server.calls.get(call_id)
        index = request.last_index
        ends = time.monotonic() + LONGEST_POLL_S
        while (left := ends - time.monotonic()) > 0:
            chunks: list[Chunk] = self._server.calls.chunks_after(call_id, index)
            for chunk in chunks:
                yield api_pb2.DataChunk.FromString(chunk.payload)
                index = chunk.index
            if not chunks:
                if call.state == CallState.DONE:
                    return
                await self._server.topics.wait(("chunks", call_id), left)

    async def FunctionCallGetDataIn(self, request: Any, caller: Caller) -> AsyncIterator[Any]:
        """Nobody sends data into a call of the groups that are served; the stream ends at once."""
        return
        yield

    def _call_of_attempt(self, attempt_token: str) -> str:
        item: Input | None = self._server.world[Input].get(attempt_token)
        if item is None:
            raise not_found("attempt", attempt_token)
        return item.call_id

    # ------------------------------------------------------------ looking at calls

    def FunctionCallCancel(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Cancel one call, or every open call of a function."""
        calls = [self._server.calls.get(request.function_call_id)] if request.function_call_id else self._open_calls(request)
        for call in calls:
            self._server.calls.cancel(unit, call, request.terminate_containers)
        return Empty()

    def _open_calls(self, request: Any) -> list[Call]:
        function_id = getattr(request, "function_id", "")
        return [c for c in self._server.world[Call].values() if c.function_id == function_id and c.state == CallState.OPEN]

    def FunctionCallFromId(self, request: Any, caller: Caller, unit: Unit) -> Any:
        call = self._server.calls.get(request.function_call_id)
        return api_pb2.FunctionCallFromIdResponse(function_call_id=call.call_id, num_inputs=call.num_inputs)

    def FunctionCallGetInfo(self, request: Any, caller: Caller, unit: Unit) -> Any:
        call = self._server.calls.get(request.function_call_id)
        return api_pb2.FunctionCallGetInfoResponse(info=self._info(call))

    def FunctionCallList(self, request: Any, caller: Caller, unit: Unit) -> Any:
        calls = [c for c in self._server.world[Call].values() if c.function_id == request.function_id]
        newest = sorted(calls, key=lambda c: (-c.created_ms, c.call_id))[:MOST_LISTED]
        return api_pb2.FunctionCallListResponse(function_calls=[self._info(call) for call in newest])

    def FunctionGetCallGraph(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """The call and what it called, by the parent input each call names."""
        response = api_pb2.FunctionGetCallGraphResponse()
        calls = [self._server.calls.get(request.function_call_id)]
        children: dict[str, list[Call]] = {}
        for call in self._server.world[Call].values():
            if call.parent_input_id:
                children.setdefault(call.parent_input_id, []).append(call)
        while calls:
            call = calls.pop(0)
            function: Function = self._server.world[Function][call.function_id]
            response.function_calls.add(
                function_call_id=call.call_id, parent_input_id=call.parent_input_id, function_name=function.name, module_name=""
            )
            inputs = self._server.calls.inputs_of(call.call_id)
            for item in inputs:
                status, task_id = self._status(item)
                response.inputs.add(input_id=item.input_id, status=status, function_call_id=call.call_id, task_id=task_id)
                calls += children.get(item.input_id, [])
        return response

    def _info(self, call: Call) -> Any:
        inputs = self._server.calls.inputs_of(call.call_id)
        statuses = [self._status(item)[0] for item in inputs if item.state == InputState.DONE]
        good, late, gone = (statuses.count(s) for s in (SUCCESS, Result.GENERIC_STATUS_TIMEOUT, Result.GENERIC_STATUS_TERMINATED))
        return api_pb2.FunctionCallInfo(
            function_call_id=call.call_id, created_at=call.created_ms / 1000, total_inputs=call.num_inputs,
            scheduled_at=min((item.started_ms for item in inputs if item.started_ms), default=0) / 1000,
            pending_inputs=call.num_inputs - len(statuses), succeeded_inputs=good, timeout_inputs=late, cancelled_inputs=gone,
            failed_inputs=len(statuses) - good - late - gone,
        )  # fmt: skip

    def _status(self, item: Input) -> tuple[Any, str]:
        output: Output | None = self._server.world[Output].get(item.input_id)
        if output is None:
            return Result.GENERIC_STATUS_UNSPECIFIED, ""
        return api_pb2.GenericResult.FromString(output.result).status, output.task_id


def _output(output: Output) -> Any:
    # retry_count is always 0 here: `.map()` drops outputs whose count is not what the client expects (protocol.md).
    return api_pb2.FunctionGetOutputsItem(
        result=api_pb2.GenericResult.FromString(output.result), idx=output.idx, input_id=output.input_id,
        data_format=output.data_format, task_id=output.task_id, input_started_at=output.started_s,  # type: ignore[arg-type]
        output_created_at=output.created_s, retry_count=0,
    )  # fmt: skip


def _seq(last_entry_id: str) -> int:
    number = last_entry_id.partition("-")[0]
    return int(number) if number.isdigit() else 0


def _range(request: Any) -> tuple[int, int] | None:
    """The indexes asked for; old clients have no such fields, and (0, 0) on a call of one input is that one."""
    if not request.HasField("start_idx") and not request.HasField("end_idx"):
        return None
    return request.start_idx, request.end_idx if request.HasField("end_idx") else 2**62


def _retry_policy(function: Function) -> Any:
    return api_pb2.FunctionRetryPolicy(
        retries=function.retries, initial_delay_ms=function.retry_initial_ms, backoff_coefficient=function.retry_backoff,
        max_delay_ms=function.retry_max_ms,
    )  # fmt: skip
