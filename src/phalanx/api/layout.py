"""What `modal app info` and its like show of functions."""

from __future__ import annotations

from typing import Any

from modal_proto import api_pb2

from phalanx.model.work import Function


def function_definition(function: Function) -> Any:
    return api_pb2.Function.FromString(function.definition)


def gpu_configs(function: Function) -> list[Any]:
    """The ordered preference, as the client shows it."""
    return [api_pb2.GPUConfig(gpu_type=str(gpu[0]), count=int(str(gpu[1]))) for gpu in function.gpus]
