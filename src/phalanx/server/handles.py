"""What a client or a container needs to hold of a function or class without having its source: handle metadata, app layouts."""

from __future__ import annotations

from collections.abc import Iterable

from modal_proto import api_pb2

from phalanx.model.app import App, Class, Mount
from phalanx.model.work import Function
from phalanx.server.world import World

# The client's own limits, said anyway: an answer that leaves them out once meant "no limit known" to FunctionPrecreate's readers.
MAX_OBJECT_BYTES = 2 * 2**20
MAX_ASYNC_OBJECT_BYTES = 8 * 2**10


def function_handle(function: Function) -> api_pb2.FunctionHandleMetadata:
    """The handle of a created function."""
    handle = handle_of(api_pb2.Function.FromString(function.definition), function.definition_id, function.app_id)
    if function.bound_to:
        handle.base_function_id = function.bound_to
    return handle


def handle_of(definition: api_pb2.Function, definition_id: str, app_id: str) -> api_pb2.FunctionHandleMetadata:
    """The handle of what a client sent. `definition_id` is empty before the function is created."""
    handle = api_pb2.FunctionHandleMetadata(
        function_name=definition.function_name,
        function_type=definition.function_type,
        is_method=definition.is_method,
        definition_id=definition_id,
        app_id=app_id,
        supported_input_formats=definition.supported_input_formats,
        supported_output_formats=definition.supported_output_formats,
        max_object_size_bytes=MAX_OBJECT_BYTES,
        max_async_object_size_bytes=MAX_ASYNC_OBJECT_BYTES,
    )
    if definition.HasField("function_schema"):
        handle.function_schema.CopyFrom(definition.function_schema)
    if definition.HasField("class_parameter_info"):
        handle.class_parameter_info.CopyFrom(definition.class_parameter_info)
    for name, method in definition.method_definitions.items():
        handle.method_handle_metadata[name].CopyFrom(_method_handle(name, method, definition_id, app_id))
    return handle


def class_handle(world: World, app: App, tag: str) -> api_pb2.ClassHandleMetadata:
    """The handle of a published class: its methods are its service function's. Clients from before 0.67 read the list."""
    function = world[Function].get(app.function_ids.get(f"{tag}.*", ""))
    if function is None:
        return api_pb2.ClassHandleMetadata()
    metadata = function_handle(function)
    handle = api_pb2.ClassHandleMetadata(class_function_id=function.function_id, class_function_metadata=metadata)
    for name, method in metadata.method_handle_metadata.items():
        handle.methods.add(function_name=name, function_id=function.function_id, function_handle_metadata=method)
    return handle


def app_layout(world: World, app: App, dependencies: Iterable[str] = ()) -> api_pb2.AppLayout:
    """Every function and class of the app under its tag, and what a container's code depends on (reference: protocol.md)."""
    layout = api_pb2.AppLayout(function_ids=app.function_ids, class_ids=app.class_ids)
    functions = world[Function]
    for function in functions.values():
        if function.app_id == app.app_id and not function.bound_to and not app.function_ids:
            layout.function_ids[function.name] = function.function_id   # not published yet: every function counts
    for function_id in layout.function_ids.values():
        if function_id in functions:
            layout.objects.add(object_id=function_id, function_handle_metadata=function_handle(functions[function_id]))
    for tag, class_id in app.class_ids.items():
        if class_id in world[Class]:
            layout.objects.add(object_id=class_id, class_handle_metadata=class_handle(world, app, tag))
    known = {one.object_id for one in layout.objects}
    for object_id in dict.fromkeys(dependencies):
        if object_id not in known:
            layout.objects.append(_dependency(world, object_id))
    return layout


def _dependency(world: World, object_id: str) -> api_pb2.Object:
    """The runner looks every dependency up, so each must be there; images and secrets have no metadata in the protocol."""
    mount = world[Mount].get(object_id)
    if mount is None:
        return api_pb2.Object(object_id=object_id)
    metadata = api_pb2.MountHandleMetadata(content_checksum_sha256_hex=mount.checksum)
    return api_pb2.Object(object_id=object_id, mount_handle_metadata=metadata)


def _method_handle(name: str, method: api_pb2.MethodDefinition, definition_id: str, app_id: str) -> api_pb2.FunctionHandleMetadata:
    handle = api_pb2.FunctionHandleMetadata(
        function_name=method.function_name,
        function_type=method.function_type,
        is_method=True,
        use_method_name=name,
        definition_id=definition_id,
        app_id=app_id,
        supported_input_formats=method.supported_input_formats,
        supported_output_formats=method.supported_output_formats,
        max_object_size_bytes=MAX_OBJECT_BYTES,
        max_async_object_size_bytes=MAX_ASYNC_OBJECT_BYTES,
    )
    if method.HasField("function_schema"):
        handle.function_schema.CopyFrom(method.function_schema)
    return handle
