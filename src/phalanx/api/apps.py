"""RPCs about apps: their life, their names, what is in them. Publishing is in deployments.py."""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from phalanx.api.people import name_of, page_of
from phalanx.model.app import App, AppState
from phalanx.model.caller import Caller
from phalanx.model.refusal import not_found
from phalanx.server.handles import app_layout
from phalanx.server.server import Server
from phalanx.server.unit import Unit

_DISCONNECTED = {
    api_pb2.APP_DISCONNECT_REASON_LOCAL_EXCEPTION: "its program raised an exception",
    api_pb2.APP_DISCONNECT_REASON_KEYBOARD_INTERRUPT: "its program was interrupted by the keyboard",
    api_pb2.APP_DISCONNECT_REASON_ENTRYPOINT_COMPLETED: "its program has ended",
    api_pb2.APP_DISCONNECT_REASON_DEPLOYMENT_EXCEPTION: "its deployment failed",
    api_pb2.APP_DISCONNECT_REASON_REMOTE_EXCEPTION: "one of its functions raised an exception",
}
_STOPPED_FROM = {
    api_pb2.APP_STOP_SOURCE_CLI: "with `modal app stop`",
    api_pb2.APP_STOP_SOURCE_PYTHON_CLIENT: "in a program",
    api_pb2.APP_STOP_SOURCE_WEB: "on the dashboard",
}


class Apps:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._apps = server.apps

    def AppCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        app = self._apps.create(
            unit,
            state=request.app_state,
            environment=request.environment_name,
            description=request.description,
            tags=request.tags,
            by=name_of(self._server, caller),
            client_version=caller.client_version,
        )
        page = page_of(self._server, caller, app)
        return api_pb2.AppCreateResponse(app_id=app.app_id, app_page_url=page, app_logs_url=page)

    def AppHeartbeat(self, request: Any, caller: Caller, unit: Unit) -> Any:
        self._apps.heartbeat(unit, request.app_id)
        return Empty()

    def AppClientDisconnect(self, request: Any, caller: Caller, unit: Unit) -> Any:
        reason = _DISCONNECTED.get(request.reason, "its client disconnected")
        self._apps.disconnect(unit, request.app_id, f"{reason}: {request.exception}" if request.exception else reason)
        return Empty()

    def AppStop(self, request: Any, caller: Caller, unit: Unit) -> Any:
        by = name_of(self._server, caller)
        self._apps.stop(unit, request.app_id, f"stopped by {by} {_STOPPED_FROM.get(request.source, '')}".rstrip(), by)
        return Empty()

    def AppGetOrCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """`App.lookup`: by name, or by id. A created one counts as deployed: it has no client to live for."""
        environment = self._server.environments.get(request.environment_name).name
        app = self._server.world[App].get(request.app_name) or self._apps.deployed(environment, request.app_name)
        if app is None:
            if request.object_creation_type != api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise not_found("App", request.app_name, f"It is not deployed in environment '{environment}'")
            app = self._apps.create(
                unit,
                state=AppState.DEPLOYED,
                environment=environment,
                description=request.app_name,
                tags={},
                by=name_of(self._server, caller),
                client_version=caller.client_version,
            )
            app.name = request.app_name
        answer = api_pb2.AppGetOrCreateResponse(app_id=app.app_id)
        answer.handle_metadata.CopyFrom(self._handle_metadata(app))
        return answer

    def AppLookup(self, request: Any, caller: Caller, unit: Unit) -> Any:
        environment = self._server.environments.get(request.environment_name).name
        app = self._apps.deployed(environment, request.app_name)
        if app is None:
            raise not_found("App", request.app_name, f"It is not deployed in environment '{environment}'")
        return api_pb2.AppLookupResponse(app_id=app.app_id)

    def AppGetByDeploymentName(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """No such app is no error: the client looks whether to deploy anew, and tells the user itself."""
        environment = self._server.environments.get(request.environment_name).name
        answer = api_pb2.AppGetByDeploymentNameResponse(environment_name=environment)
        app = self._apps.deployed(environment, request.name)
        if app is not None:
            answer.app_id = app.app_id
        else:
            app = self._apps.previous(environment, request.name)
            answer.previous_app_id = app.app_id if app else ""
        if app is not None:
            answer.lifecycle.CopyFrom(self._lifecycle(app))
        return answer

    def AppGetLifecycle(self, request: Any, caller: Caller, unit: Unit) -> Any:
        return api_pb2.AppGetLifecycleResponse(lifecycle=self._lifecycle(self._apps.get(request.app_id)))

    def AppList(self, request: Any, caller: Caller, unit: Unit) -> Any:
        environment = self._server.environments.get(request.environment_name).name
        answer = api_pb2.AppListResponse()
        for app in self._apps.listed(environment):
            answer.apps.add(
                app_id=app.app_id,
                name=app.name,
                description=app.name or app.description,
                state=app.state,
                created_at=app.created_ms / 1000,
                stopped_at=app.stopped_ms / 1000,
                n_running_tasks=self._apps.running_tasks(app.app_id),
                metadata=self._handle_metadata(app),
            )
        return answer

    def AppGetInfo(self, request: Any, caller: Caller, unit: Unit) -> Any:
        app = self._apps.get(request.app_id)
        answer = api_pb2.AppGetInfoResponse(info=self._handle_metadata(app))
        for function in self._apps.functions(app.app_id):
            if function.bound_to:
                continue
            summary = answer.function_info_summaries[function.function_id]
            for gpu_type, count, *_ in function.gpus:
                summary.gpu_config.add(gpu_type=str(gpu_type), count=int(str(count)))
            definition = api_pb2.Function.FromString(function.definition)
            if definition.HasField("schedule"):
                summary.schedule.CopyFrom(definition.schedule)
        return answer

    def AppGetLayout(self, request: Any, caller: Caller, unit: Unit) -> Any:
        return api_pb2.AppGetLayoutResponse(app_layout=app_layout(self._server.world, self._apps.get(request.app_id)))

    def AppGetObjects(self, request: Any, caller: Caller, unit: Unit) -> Any:
        layout = app_layout(self._server.world, self._apps.get(request.app_id))
        objects = {item.object_id: item for item in layout.objects}
        answer = api_pb2.AppGetObjectsResponse()
        for tag, object_id in [*layout.function_ids.items(), *layout.class_ids.items()]:
            if object_id in objects:
                answer.items.add(tag=tag, object=objects[object_id])
        return answer

    def AppSetTags(self, request: Any, caller: Caller, unit: Unit) -> Any:
        self._apps.set_tags(unit, request.app_id, request.tags)
        return Empty()

    def AppGetTags(self, request: Any, caller: Caller, unit: Unit) -> Any:
        return api_pb2.AppGetTagsResponse(tags=self._apps.get(request.app_id).tags)

    def _lifecycle(self, app: App) -> Any:
        lifecycle = api_pb2.AppLifecycle(
            app_state=app.state,
            created_at=app.created_ms / 1000,
            created_by=app.created_by,
            stopped_at=app.stopped_ms / 1000,
            stopped_by=app.stopped_by,
        )
        version = self._server.deployments.live_version(app.app_id)
        if version is not None:
            lifecycle.version = version.version
            lifecycle.deployed_at = version.deployed_ms / 1000
            lifecycle.deployed_by = version.deployed_by
        return lifecycle

    def _handle_metadata(self, app: App) -> Any:
        return api_pb2.AppHandleMetadata(
            app_id=app.app_id,
            description=app.name or app.description,
            environment_name=app.environment,
            lifecycle=self._lifecycle(app),
            functions=app.function_ids,
        )
