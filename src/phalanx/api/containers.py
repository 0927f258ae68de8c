"""What containers ask: the two barriers, heartbeats, inputs and outputs. They come through their shims, which name the task."""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from phalanx.model.caller import Caller
from phalanx.model.cluster import Attempt, RankResult
from phalanx.model.refusal import Refusal, RefusalKind
from phalanx.model.work import Call, Input
from phalanx.server.containers import MustLeave
from phalanx.server.server import Server
from phalanx.server.unit import Unit

HEARTBEAT_POLL_S = 13.0     # the client's deadline is 15.1 s: a cancellation is delivered at once, otherwise an empty answer
INPUT_POLL_S = 50.0
SUCCESS = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
TERMINATED = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED
UNSPECIFIED = api_pb2.GenericResult.GENERIC_STATUS_UNSPECIFIED


class Containers:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._containers = server.containers

    async def ContainerHello(self, request: Any, caller: Caller, unit: Unit) -> Any:
        await self._containers.hello(*_task(caller))
        return Empty()

    async def TaskClusterHello(self, request: Any, caller: Caller, unit: Unit) -> Any:
        assignment, rank = _task(caller)
        members = await self._containers.cluster_hello(assignment, rank)
        return api_pb2.TaskClusterHelloResponse(
            cluster_id=members[0].cluster_id, cluster_rank=rank, container_ips=[m.ipv6 for m in members],
            container_ipv4_ips=[m.ipv4 for m in members], fabric_ids=self._server.fabric_ids(members),
        )  # fmt: skip

    async def ContainerHeartbeat(self, request: Any, caller: Caller, unit: Unit) -> Any:
        cancelled = await self._containers.cancelled_inputs(caller.task_id, *_task(caller), HEARTBEAT_POLL_S)
        if not cancelled:
            return api_pb2.ContainerHeartbeatResponse()
        return api_pb2.ContainerHeartbeatResponse(cancel_input_event=api_pb2.CancelInputEvent(input_ids=cancelled))

    async def FunctionGetInputs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        if self._server.input_requests.is_over(caller.task_id, caller.idempotency_key):
            return api_pb2.FunctionGetInputsResponse()
        most, linger_s = max(request.batch_max_size, 1), request.batch_linger_ms / 1000
        try:
            attempts = await self._containers.next_inputs(unit, *_task(caller), INPUT_POLL_S, most, linger_s)
        except MustLeave:
            return api_pb2.FunctionGetInputsResponse(inputs=[api_pb2.FunctionGetInputsItem(kill_switch=True)])
        return api_pb2.FunctionGetInputsResponse(inputs=[self._item(attempt) for attempt in attempts])

    def _item(self, attempt: Attempt) -> Any:
        item: Input = self._server.world[Input][attempt.input_id]
        call: Call = self._server.world[Call][item.call_id]
        return api_pb2.FunctionGetInputsItem(
            input_id=item.input_id, input=api_pb2.FunctionInput.FromString(item.payload), function_call_id=item.call_id,
            function_call_invocation_type=call.invocation, retry_count=attempt.attempt - 1,  # type: ignore[arg-type]
            function_map_idx=item.idx, attempt_token=item.input_id,
        )  # fmt: skip

    def FunctionPutOutputs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        assignment, rank = _task(caller)
        for output in request.outputs:
            self._containers.put(unit, assignment, rank, output.input_id, output.retry_count + 1, rank_result(output))
        self._server.log_marks.ask(assignment, rank)
        return Empty()

    def FunctionCallPutDataOut(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """A generator's data; that of ranks above 0 is dropped, like their results."""
        call_id = self._containers.generates(*_task(caller), request.function_call_id or request.attempt_token)
        if call_id:
            self._server.calls.add_chunks(unit, call_id, [(chunk.index, chunk.SerializeToString()) for chunk in request.data_chunks])
        return Empty()

    def TaskResult(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """The end of a runner: a failure is the user's module or @enter; success is no news, the exit follows."""
        assignment, rank = _task(caller)
        if request.result.status not in (SUCCESS, UNSPECIFIED):
            self._containers.failed(unit, assignment, rank, request.result.SerializeToString(), request.result.exception)
        return Empty()

    def ContainerStop(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """From inside a container it means: no more inputs for me (`stop_fetching_inputs`)."""
        self._containers.stop(unit, request.task_id, graceful=caller.is_task or getattr(request, "graceful", False))
        return api_pb2.ContainerStopResponse()


def rank_result(output: Any) -> RankResult:
    """What a rank put, as the core needs it: the message itself stays as it is."""
    status = "ok" if output.result.status == SUCCESS else "terminated" if output.result.status == TERMINATED else "failed"
    return RankResult(
        status, output.result.SerializeToString(), output.data_format, output.input_started_at, output.output_created_at,
        output.result.exception,
    )  # fmt: skip


def _task(caller: Caller) -> tuple[int, int]:
    if not caller.is_task:
        raise Refusal(RefusalKind.DENIED, "this request is for containers: it must come through a container's own socket")
    return caller.assignment, caller.rank
