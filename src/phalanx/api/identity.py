"""RPCs about who the client is and whom it talks to."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

from modal_proto import api_pb2

from phalanx.api.people import host_of
from phalanx.api.versions import builder_version
from phalanx.model.caller import Caller
from phalanx.server.server import Server
from phalanx.server.unit import Unit

AUTH_TOKEN_S = 20 * 60


class Identity:
    def __init__(self, server: Server) -> None:
        self._server = server

    def ClientHello(self, request: Any, caller: Caller, unit: Unit) -> Any:
        return api_pb2.ClientHelloResponse(image_builder_version=builder_version(caller.client_version))

    def WorkspaceNameLookup(self, request: Any, caller: Caller, unit: Unit) -> Any:
        workspace = self._server.config.workspace
        return api_pb2.WorkspaceNameLookupResponse(workspace_name=workspace, username=workspace)

    def TokenInfoGet(self, request: Any, caller: Caller, unit: Unit) -> Any:
        workspace = self._server.config.workspace
        return api_pb2.TokenInfoGetResponse(
            token_id=self._server.config.token_id,
            workspace_id=f"ws-{workspace}",
            workspace_name=workspace,
            user_identity=api_pb2.UserIdentity(user_id=f"us-{workspace}", username=workspace),
        )

    def AuthTokenGet(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """A JWT for doors beside this one. The client reads its `exp`, and refreshes it before."""
        claims = {"sub": caller.name, "exp": self._server.now_ms() // 1000 + AUTH_TOKEN_S}
        body = f"{_base64({'alg': 'HS256', 'typ': 'JWT'})}.{_base64(claims)}"
        signature = hmac.new(self._server.config.token_secret.encode(), body.encode(), hashlib.sha256).digest()
        return api_pb2.AuthTokenGetResponse(token=f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}")

    def TokenFlowCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Partly: the page asks for the token that `phalanx up` printed, since there are no accounts."""
        login = self._server.logins.begin()
        url = f"http://{host_of(self._server, caller)}/login/{login.login_id}"
        return api_pb2.TokenFlowCreateResponse(token_flow_id=login.login_id, wait_secret=login.wait_secret, code=login.code, web_url=url)

    async def TokenFlowWait(self, request: Any, caller: Caller, unit: Unit) -> Any:
        if not await self._server.logins.wait(request.token_flow_id, request.wait_secret, request.timeout):
            return api_pb2.TokenFlowWaitResponse(timeout=True)
        config = self._server.config
        return api_pb2.TokenFlowWaitResponse(
            token_id=config.token_id, token_secret=config.token_secret, workspace_username=config.workspace
        )


def _base64(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).rstrip(b"=").decode()
