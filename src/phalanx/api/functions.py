"""RPCs about functions and classes: created, looked up, bound to parameters, scaled."""

from __future__ import annotations

from typing import Any

from modal_proto import api_pb2

from phalanx.model.caller import Caller
from phalanx.model.work import Function
from phalanx.server import definition
from phalanx.server.handles import class_handle, function_handle, handle_of
from phalanx.server.server import Server
from phalanx.server.unit import Unit


class Functions:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._functions = server.functions

    def FunctionPrecreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """An id, before the function exists: functions that name each other are packaged with their ids."""
        function_id = self._functions.announce(request.app_id, request.existing_function_id)
        known = api_pb2.Function()
        definition.copy_common_fields(request, known)
        answer = api_pb2.FunctionPrecreateResponse(function_id=function_id)
        answer.handle_metadata.CopyFrom(handle_of(known, "", request.app_id))
        return answer

    async def FunctionCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        asked = definition.read_asked(
            request.function.SerializeToString() if request.HasField("function") else b"",
            request.function_data.SerializeToString() if request.HasField("function_data") else b"",
        )
        if request.HasField("schedule"):    # where older clients say it
            asked.definition.schedule.CopyFrom(request.schedule)
        package = await self._functions.client_for(asked, caller.client_version)    # may install: before anything is changed
        created = self._functions.create(unit, request.app_id, request.existing_function_id, asked, package.version)
        self._server.mounts.client_mount(unit, package)     # last: what is refused must have changed nothing
        answer = api_pb2.FunctionCreateResponse(function_id=created.function.function_id)
        answer.function.CopyFrom(definition.without_code(asked.definition))
        answer.handle_metadata.CopyFrom(function_handle(created.function))
        answer.function_data.CopyFrom(definition.data_of(asked.ranked))
        for sentence in created.warnings:
            answer.server_warnings.add(message=sentence)
        return answer

    def FunctionGet(self, request: Any, caller: Caller, unit: Unit) -> Any:
        self._functions.refuse_version(request.app_version)
        function = self._functions.deployed(request.environment_name, request.app_name, request.object_tag)
        answer = api_pb2.FunctionGetResponse(function_id=function.function_id, handle_metadata=function_handle(function))
        answer.function.CopyFrom(_data(function))
        return answer

    def FunctionGetById(self, request: Any, caller: Caller, unit: Unit) -> Any:
        function = self._functions.get(request.function_id)
        return api_pb2.FunctionGetByIdResponse(function=_data(function), handle_metadata=function_handle(function))

    def FunctionGetSerialized(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Containers of clients up to 0.73 fetch packaged code; newer ones find it in their arguments."""
        packaged = api_pb2.Function.FromString(self._functions.get(request.function_id).definition)
        return api_pb2.FunctionGetSerializedResponse(
            function_serialized=packaged.function_serialized, class_serialized=packaged.class_serialized
        )

    def FunctionBindParams(self, request: Any, caller: Caller, unit: Unit) -> Any:
        options = definition.serialized(request.function_options) if request.HasField("function_options") else b""
        bound = self._functions.bind(unit, request.function_id, request.serialized_params, options)
        return api_pb2.FunctionBindParamsResponse(bound_function_id=bound.function_id, handle_metadata=function_handle(bound))

    def FunctionListVariants(self, request: Any, caller: Caller, unit: Unit) -> Any:
        answer = api_pb2.FunctionListVariantsResponse()
        for bound in self._functions.bound(self._functions.get(request.function_id).function_id)[: request.limit or None]:
            info = answer.infos.add(function_id=bound.function_id, serialized_params=bound.serialized_params)
            info.function_options.MergeFromString(bound.bind_options)
        return answer

    def FunctionUpdateSchedulingParams(self, request: Any, caller: Caller, unit: Unit) -> Any:
        settings = api_pb2.AutoscalerSettings()
        settings.CopyFrom(request.settings)
        if not request.HasField("settings"):    # `keep_warm` of older clients
            settings.min_containers = request.warm_pool_size_override
        now = self._functions.set_scaling(unit, request.function_id, settings.SerializeToString())
        return api_pb2.FunctionUpdateSchedulingParamsResponse(current_settings=now)

    def FunctionGetSchedulingParams(self, request: Any, caller: Caller, unit: Unit) -> Any:
        function = self._functions.get(request.function_id)
        answer = api_pb2.FunctionGetSchedulingParamsResponse()
        answer.autoscaler_configuration.settings.CopyFrom(self._functions.scaling(function))
        answer.autoscaler_configuration.override_settings.MergeFromString(function.autoscaler_override)
        return answer

    def FunctionGetCurrentStats(self, request: Any, caller: Caller, unit: Unit) -> Any:
        stats = self._functions.stats(request.function_id)
        return api_pb2.FunctionStats(
            backlog=stats.backlog,
            num_total_tasks=stats.containers,
            num_running_inputs=stats.running_inputs,
            input_headroom=stats.headroom,
        )

    def FunctionGetDynamicConcurrency(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """A container may always take its maximum: how many inputs are open is decided by the server, in step for all ranks."""
        return api_pb2.FunctionGetDynamicConcurrencyResponse(concurrency=request.max_concurrency or request.target_concurrency)

    def ClassCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        made = self._functions.create_class(unit, request.app_id, request.existing_class_id)
        return api_pb2.ClassCreateResponse(class_id=made.class_id, handle_metadata=api_pb2.ClassHandleMetadata())

    def ClassGet(self, request: Any, caller: Caller, unit: Unit) -> Any:
        self._functions.refuse_version(request.app_version)
        self._functions.deployed(request.environment_name, request.app_name, f"{request.object_tag}.*")
        app = self._functions.deployed_app(request.environment_name, request.app_name)
        handle = class_handle(self._server.world, app, request.object_tag)
        return api_pb2.ClassGetResponse(class_id=app.class_ids.get(request.object_tag, ""), handle_metadata=handle)


def _data(function: Function) -> Any:
    return definition.data_of(definition.ranked_of(function))
