"""RPCs about environments."""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty
from modal_proto import api_pb2

from phalanx.api.people import name_of
from phalanx.api.versions import builder_version
from phalanx.model.app import Environment
from phalanx.model.caller import Caller
from phalanx.model.refusal import Refusal, RefusalKind
from phalanx.server.server import Server
from phalanx.server.unit import Unit


class Environments:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._environments = server.environments

    def EnvironmentGetOrCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        name = request.deployment_name
        wants_creation = request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING
        if wants_creation and name and name not in self._server.world[Environment]:
            environment = self._environments.create(unit, name)
        else:
            environment = self._environments.get(name)
        settings = api_pb2.EnvironmentSettings(
            image_builder_version=builder_version(caller.client_version), webhook_suffix=environment.webhook_suffix
        )
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id=environment.environment_id,
            metadata=api_pb2.EnvironmentMetadata(name=environment.name, settings=settings),
        )

    def EnvironmentList(self, request: Any, caller: Caller, unit: Unit) -> Any:
        answer = api_pb2.EnvironmentListResponse()
        answer.items.extend(_item(environment) for environment in self._environments.all())
        return answer

    def EnvironmentCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Partly: without roles, restrictions and limits, since the workspace has one user."""
        if request.is_managed or request.environment_type or request.default_member_role or request.default_member_role_str:
            raise Refusal(RefusalKind.UNIMPLEMENTED, "Restricted and public environments are not supported: this workspace has one user")
        self._environments.create(unit, request.name)
        return Empty()

    def EnvironmentDelete(self, request: Any, caller: Caller, unit: Unit) -> Any:
        self._environments.delete(unit, request.name, name_of(self._server, caller))
        return Empty()

    def EnvironmentUpdate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Partly: name and web suffix; the image builder version follows the client, and there are no limits per environment."""
        if request.image_builder_version:
            raise Refusal(RefusalKind.UNIMPLEMENTED, "The image builder version follows the client's: it can't be set per environment")
        if any(request.HasField(name) for name in _LIMITS):
            raise Refusal(RefusalKind.UNIMPLEMENTED, "Limits per environment are not supported by this Phalanx server")
        environment = self._environments.update(
            unit,
            request.current_name,
            request.name.value if request.HasField("name") else None,
            request.web_suffix.value if request.HasField("web_suffix") else None,
        )
        return _item(environment)


def _item(environment: Environment) -> Any:
    return api_pb2.EnvironmentListItem(
        name=environment.name,
        webhook_suffix=environment.webhook_suffix,
        created_at=environment.created_ms / 1000,
        default=environment.is_default,
        environment_id=environment.environment_id,
    )


_LIMITS = ("max_concurrent_tasks", "max_concurrent_gpus", "block_unauthenticated_resources")
