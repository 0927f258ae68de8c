"""What all ranks of a function are told alike: made once, until something of its app changes, instead of once a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modal_proto import api_pb2

from phalanx.model.app import App, Class, Mount
from phalanx.model.cluster import Member
from phalanx.model.work import Function
from phalanx.server.handles import app_layout

if TYPE_CHECKING:
    from phalanx.server.server import Server


class Arguments:
    """Serialized ContainerArguments. With 90 functions in an app, making them took 2.2 ms a rank; a large gang is many ranks."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._common: dict[str, dict[tuple[str, int], bytes]] = {}      # app -> (function, GPU choice) -> all but the task
        server.world.watch(Function, lambda function: self._forget(function.app_id))
        server.world.watch(App, lambda app: self._forget(app.app_id))
        for record_class in (Class, Mount):
            server.world.watch(record_class, lambda _: self._common.clear())

    def of(self, function: Function, member: Member, definition: api_pb2.Function, gpu_choice: int) -> bytes:
        """Two serialized messages of one type, one after the other, are their merged message."""
        known = self._common.setdefault(function.app_id, {})
        key = (function.function_id, gpu_choice)
        if key not in known:
            known[key] = self._make(function, definition)
        return known[key] + api_pb2.ContainerArguments(task_id=member.task_id).SerializeToString()

    def _make(self, function: Function, definition: api_pb2.Function) -> bytes:
        app: App = self._server.world[App][function.app_id]
        arguments = api_pb2.ContainerArguments(
            function_id=function.function_id,
            app_id=function.app_id,
            function_def=definition,
            serialized_params=function.serialized_params,
            environment_name=app.environment,
            app_layout=app_layout(self._server.world, app, (dependency.object_id for dependency in definition.object_dependencies)),
        )
        return arguments.SerializeToString()

    def _forget(self, app_id: str) -> None:
        self._common.pop(app_id, None)
