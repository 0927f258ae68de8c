"""A client that makes functions and calls by single requests: for stories about hundreds of calls, where a process each is too much."""

from __future__ import annotations

import pickle
import time
from typing import Any

from modal_proto import api_pb2

from tests.harness.control_plane import ControlPlane

PICKLE = api_pb2.DATA_FORMAT_PICKLE
SUCCESS = api_pb2.GenericResult.GENERIC_STATUS_SUCCESS


class Caller:
    """One ephemeral app and what is called in it."""

    def __init__(self, plane: ControlPlane, name: str = "story") -> None:
        self.plane = plane
        request = api_pb2.AppCreateRequest(description=name, app_state=api_pb2.APP_STATE_DETACHED)
        self.app_id: str = plane.rpc("AppCreate", request).app_id

    def function(self, name: str = "work", size: int = 1, gpu: str = "", clustered: bool | None = None, **fields: Any) -> str:
        """A function's id. `gpu="H100:8"`; other fields are those of api_pb2.Function."""
        fields = {"timeout_secs": 300} | fields
        definition = api_pb2.Function(
            module_name="story", function_name=name, function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION, **fields
        )
        if clustered if clustered is not None else size > 1:
            definition._experimental_group_size = size
            definition.i6pn_enabled = True
        if gpu:
            kind, _, count = gpu.partition(":")
            definition.resources.gpu_config.gpu_type = kind
            definition.resources.gpu_config.count = int(count or 1)
        request = api_pb2.FunctionCreateRequest(app_id=self.app_id, function=definition)
        return str(self.plane.rpc("FunctionCreate", request).function_id)

    def call(self, function_id: str, inputs: int = 1, key: str = "") -> str:
        """Start a call of so many inputs and return its id at once."""
        items = [
            api_pb2.FunctionPutInputsItem(idx=n, input=api_pb2.FunctionInput(args=pickle.dumps(((n,), {})), data_format=PICKLE))
            for n in range(inputs)
        ]
        request = api_pb2.FunctionMapRequest(
            function_id=function_id,
            function_call_type=api_pb2.FUNCTION_CALL_TYPE_UNARY if inputs == 1 else api_pb2.FUNCTION_CALL_TYPE_MAP,
            function_call_invocation_type=api_pb2.FUNCTION_CALL_INVOCATION_TYPE_SYNC,
            pipelined_inputs=items,
        )
        call_id = str(self.plane.rpc("FunctionMap", request, key=key).function_call_id)
        if inputs > 1:
            self.plane.rpc("FunctionFinishInputs", api_pb2.FunctionFinishInputsRequest(function_call_id=call_id, num_inputs=inputs))
        return call_id

    def outputs(self, call_id: str, timeout_s: float = 30) -> list[Any]:
        """The next outputs of a call, as the client gets them; empty at the time-out."""
        request = api_pb2.FunctionGetOutputsRequest(function_call_id=call_id, timeout=timeout_s, last_entry_id="0-0", max_values=1000)
        return list(self.plane.rpc("FunctionGetOutputs", request).outputs)

    def result(self, call_id: str, timeout_s: float = 30) -> Any:
        """The value of a call of one input; raises Failed with the status and the sentence."""
        outputs = self.outputs(call_id, timeout_s)
        assert outputs, f"call {call_id} had no output within {timeout_s} s"
        result = outputs[0].result
        if result.status != SUCCESS:
            raise Failed(result)
        return pickle.loads(result.data)

    def results(self, call_id: str, count: int, timeout_s: float = 60) -> list[Any]:
        """All values of a call of `count` inputs, by index."""
        ends = time.monotonic() + timeout_s
        values: dict[int, Any] = {}
        while len(values) < count and time.monotonic() < ends:
            values = {output.idx: pickle.loads(output.result.data) for output in self.outputs(call_id, 5)}
        return [values[idx] for idx in sorted(values)]

    def cancel(self, call_id: str) -> None:
        self.plane.rpc("FunctionCallCancel", api_pb2.FunctionCallCancelRequest(function_call_id=call_id))

    def stop(self) -> None:
        self.plane.rpc("AppStop", api_pb2.AppStopRequest(app_id=self.app_id, source=api_pb2.APP_STOP_SOURCE_CLI))


class Failed(Exception):
    """The call failed. `status` is api_pb2.GenericResult.GenericStatus."""

    def __init__(self, result: Any) -> None:
        super().__init__(result.exception)
        self.status = result.status
        self.data = result.data
