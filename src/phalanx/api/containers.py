"""What containers ask: the two barriers, heartbeats, inputs and outputs. They come through their shims, which name the task."""

from __future__ import annotations

import time
from typing import Any

from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from phalanx.core import events as ev
from phalanx.model.caller import Caller
from phalanx.model.cluster import Attempt, Cause, MemberState, Phase, RankResult
from phalanx.model.refusal import Refusal, RefusalKind, not_found
from phalanx.model.work import Call, Input
from phalanx.server.server import Server
from phalanx.server.unit import Unit

HEARTBEAT_POLL_S = 13.0     # the client's deadline is 15.1 s: a cancellation is delivered at once, otherwise an empty answer
INPUT_POLL_S = 50.0
FOREVER_S = 3600.0
SUCCESS = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS
TERMINATED = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED


class Containers:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._told: dict[tuple[str, str], float] = {}     # (task, input) -> when its cancellation was last sent

    # ------------------------------------------------------------ the two barriers (design rule 2)

    async def ContainerHello(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Held until every rank has said it and reaches its peers; for ever where the gang ends first: the rank is being killed."""
        assignment, rank = _task(caller)
        await self._server.act(lambda own: self._server.gangs.dispatch(own, assignment, ev.Hello(rank)))
        while not self._is_past_first_barrier(assignment, rank):
            await self._server.topics.wait(("hello", assignment), FOREVER_S)
        return Empty()

    def _is_past_first_barrier(self, assignment: int, rank: int) -> bool:
        gang = self._server.gangs.running.get(assignment)
        return gang is not None and gang.members[rank].state in (MemberState.IMPORTING, MemberState.READY)

    async def TaskClusterHello(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Held until every rank has imported the user's module; then rank, cluster and everybody's addresses."""
        assignment, rank = _task(caller)
        await self._server.act(lambda own: self._server.gangs.dispatch(own, assignment, ev.ClusterHello(rank)))
        while True:
            gang = self._server.gangs.running.get(assignment)
            if gang is not None and gang.assignment.phase == Phase.RUNNING and all(m.state == MemberState.READY for m in gang.members):
                break
            await self._server.topics.wait(("ready", assignment), FOREVER_S)
        response = api_pb2.TaskClusterHelloResponse(
            cluster_id=gang.assignment.cluster_id, cluster_rank=rank, container_ips=[m.ipv6 for m in gang.members],
            container_ipv4_ips=[m.ipv4 for m in gang.members],
        )  # fmt: skip
        response.fabric_ids.extend(self._server.fabric_ids(gang.members))
        return response

    # ------------------------------------------------------------ inputs and outputs

    async def ContainerHeartbeat(self, request: Any, caller: Caller, unit: Unit) -> Any:
        assignment, rank = _task(caller)
        ends = time.monotonic() + HEARTBEAT_POLL_S
        while (left := ends - time.monotonic()) > 0:
            gang = self._server.gangs.running.get(assignment)
            cancelled = [i for i in gang.cancelled_on(rank) if self._may_tell(caller.task_id, i)] if gang else []
            if cancelled:
                for input_id in cancelled:
                    self._told[(caller.task_id, input_id)] = time.monotonic()
                return api_pb2.ContainerHeartbeatResponse(cancel_input_event=api_pb2.CancelInputEvent(input_ids=cancelled))
            await self._server.topics.wait(("cancel", caller.task_id), left)
        return api_pb2.ContainerHeartbeatResponse()

    def _may_tell(self, task_id: str, input_id: str) -> bool:
        """Once: a second cancellation of an input that already handles the first would hit its clean-up."""
        return (task_id, input_id) not in self._told

    async def FunctionGetInputs(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """The next input of this rank: the same ones in the same order on every rank, `max_inputs` open at once."""
        assignment, rank = _task(caller)
        ends = time.monotonic() + INPUT_POLL_S
        while True:
            gang = self._server.gangs.running.get(assignment)
            if gang is None or gang.must_leave(rank):
                return api_pb2.FunctionGetInputsResponse(inputs=[api_pb2.FunctionGetInputsItem(kill_switch=True)])
            attempt = self._server.gangs.next_for(unit, assignment, rank)
            if attempt is not None:
                return api_pb2.FunctionGetInputsResponse(inputs=[self._item(attempt)])
            left = ends - time.monotonic()
            if left <= 0:
                return api_pb2.FunctionGetInputsResponse()
            await self._server.topics.wait(("gang", assignment), left)

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
            put = ev.Put(rank, output.input_id, output.retry_count + 1, rank_result(output))
            self._server.gangs.dispatch(unit, assignment, put)
        return Empty()

    def FunctionCallPutDataOut(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """A generator's data; that of ranks above 0 is dropped, like their results."""
        assignment, rank = _task(caller)
        gang = self._server.gangs.running.get(assignment)
        if gang is None or rank > 0:
            return Empty()
        call_id = request.function_call_id or self._server.world[Input][request.attempt_token].call_id
        self._server.calls.add_chunks(unit, call_id, [(chunk.index, chunk.SerializeToString()) for chunk in request.data_chunks])
        return Empty()

    def TaskResult(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """The end of a runner: a failure is the user's module or @enter; success is no news, the exit follows."""
        assignment, rank = _task(caller)
        if request.result.status not in (SUCCESS, api_pb2.GenericResult.GENERIC_STATUS_UNSPECIFIED):
            failed = ev.TaskFailed(rank, request.result.SerializeToString(), request.result.exception)
            self._server.gangs.dispatch(unit, assignment, failed)
        return Empty()

    # ------------------------------------------------------------ stopping

    def ContainerStop(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """A container's stop stops its whole cluster: members never go alone. From inside, it means: no more inputs for me."""
        member = self._server.gangs.by_task.get(request.task_id)
        if member is None or member.assignment not in self._server.gangs.running:
            raise not_found("container", request.task_id, "It may have ended: see `modal container list`")
        graceful = caller.is_task or getattr(request, "graceful", False)
        stop = ev.StopAsked(Cause.STOPPED, "the container was stopped by `modal container stop`", graceful=graceful)
        self._server.gangs.dispatch(unit, member.assignment, stop)
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

