"""What is in an app, as clients and containers read it: every function and class with its handle."""

from __future__ import annotations

from typing import Any

from modal_proto import api_pb2

from phalanx.model.app import App, Class
from phalanx.model.work import Function
from phalanx.server.server import Server

_FORMATS = [api_pb2.DATA_FORMAT_PICKLE, api_pb2.DATA_FORMAT_CBOR]


def app_layout(server: Server, app: App) -> Any:
    """The published tags, and every function and class they name."""
    layout = api_pb2.AppLayout(function_ids=app.function_ids, class_ids=app.class_ids)
    functions, classes = server.world[Function], server.world[Class]
    for function_id in app.function_ids.values():
        if function_id in functions:
            layout.objects.add(object_id=function_id, function_handle_metadata=function_handle(functions[function_id]))
    for class_id in app.class_ids.values():
        if class_id not in classes:
            continue
        handle = api_pb2.ClassHandleMetadata(class_function_id=classes[class_id].function_id)
        if classes[class_id].function_id in functions:
            handle.class_function_metadata.CopyFrom(function_handle(functions[classes[class_id].function_id]))
        layout.objects.add(object_id=class_id, class_handle_metadata=handle)
    return layout


def function_handle(function: Function) -> Any:
    """What a client needs to call a function without having its source."""
    definition = function_definition(function)
    handle = api_pb2.FunctionHandleMetadata(
        function_name=function.name,
        function_type=definition.function_type,
        definition_id=function.definition_id,
        is_method=definition.is_method,
        app_id=function.app_id,
        supported_input_formats=definition.supported_input_formats or _FORMATS,
        supported_output_formats=definition.supported_output_formats or _FORMATS,
    )
    if definition.HasField("function_schema"):
        handle.function_schema.CopyFrom(definition.function_schema)
    if definition.HasField("class_parameter_info"):
        handle.class_parameter_info.CopyFrom(definition.class_parameter_info)
    for name, method in definition.method_definitions.items():
        handle.method_handle_metadata[name].function_name = method.function_name
        handle.method_handle_metadata[name].function_type = method.function_type
        handle.method_handle_metadata[name].is_method = True
        if method.HasField("function_schema"):
            handle.method_handle_metadata[name].function_schema.CopyFrom(method.function_schema)
    return handle


def function_definition(function: Function) -> Any:
    return api_pb2.Function.FromString(function.definition)


def gpu_configs(function: Function) -> list[Any]:
    """The ordered preference, as the client shows it."""
    return [api_pb2.GPUConfig(gpu_type=str(gpu[0]), count=int(str(gpu[1]))) for gpu in function.gpus]
