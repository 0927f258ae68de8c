"""RPCs about deployments: publish, history, and the ways back to an earlier version."""

from __future__ import annotations

from typing import Any

from modal_proto import api_pb2

from phalanx.api.people import name_of, page_of
from phalanx.model.app import AppVersion, DeploymentType
from phalanx.model.caller import Caller
from phalanx.server.deployments import Publication, Published
from phalanx.server.server import Server
from phalanx.server.unit import Unit


class Deployments:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._deployments = server.deployments

    def AppPublish(self, request: Any, caller: Caller, unit: Unit) -> Any:
        wanted = Publication(
            by=name_of(self._server, caller),
            state=request.app_state,
            name=request.name,
            tags=dict(request.tags) if request.tags else None,
            function_ids=dict(request.function_ids),
            class_ids=dict(request.class_ids),
            definition_ids=dict(request.definition_ids),
            deployment_tag=request.deployment_tag,
            commit_info=request.commit_info.SerializeToString() if request.HasField("commit_info") else b"",
            client_version=caller.client_version or request.client_version,
            staged=request.staged,
        )
        published = self._deployments.publish(unit, request.app_id, wanted)
        return self._answer(api_pb2.AppPublishResponse(), request.app_id, caller, published)

    def AppRollback(self, request: Any, caller: Caller, unit: Unit) -> Any:
        published = self._deployments.roll_back(unit, request.app_id, request.version, name_of(self._server, caller), caller.client_version)
        return self._answer(api_pb2.AppRollbackResponse(), request.app_id, caller, published)

    def AppRollover(self, request: Any, caller: Caller, unit: Unit) -> Any:
        published = self._deployments.roll_over(unit, request.app_id, name_of(self._server, caller), caller.client_version)
        return self._answer(api_pb2.AppRolloverResponse(), request.app_id, caller, published)

    def AppPromote(self, request: Any, caller: Caller, unit: Unit) -> Any:
        published = self._deployments.promote(unit, request.app_id, request.version, name_of(self._server, caller), caller.client_version)
        return self._answer(api_pb2.AppPromoteResponse(), request.app_id, caller, published)

    def AppDeploymentHistory(self, request: Any, caller: Caller, unit: Unit) -> Any:
        self._server.apps.get(request.app_id)
        live = self._deployments.live_version(request.app_id)
        answer = api_pb2.AppDeploymentHistoryResponse(production_app_version=live.version if live else 0)
        for version in self._deployments.history(request.app_id):
            answer.app_deployment_histories.append(_history_line(version, live))
        return answer

    def _answer(self, answer: Any, app_id: str, caller: Caller, published: Published) -> Any:
        answer.url = page_of(self._server, caller, self._server.apps.get(app_id))
        answer.deployed_at = published.deployed_ms / 1000
        for warning in published.warnings:
            answer.server_warnings.add(type=api_pb2.Warning.WARNING_TYPE_FUNCTION_CONFIGURATION, message=warning)
        return answer


def _history_line(version: AppVersion, live: AppVersion | None) -> Any:
    line = api_pb2.AppDeploymentHistory(
        app_id=version.app_id,
        version=version.version,
        client_version=version.client_version,
        deployed_at=version.deployed_ms / 1000,
        deployed_by=version.deployed_by,
        tag=version.tag,
        rollback_version=version.source_version if version.type == DeploymentType.ROLLBACK else 0,
        rollback_allowed=version is not live and version.type != DeploymentType.STAGED,
        deployment_type=version.type,
    )
    if version.commit_info:
        line.commit_info.CopyFrom(api_pb2.CommitInfo.FromString(version.commit_info))
    return line
