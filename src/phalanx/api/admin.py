"""The server's own door beside the client's, for the `phalanx` command: JSON in a StringValue both ways, on the public socket.

    /phalanx.admin.v1.Admin/Status   {} -> {"server": {...}, "nodes": [...], "clusters": [...], "waiting": [...]}
    /phalanx.admin.v1.Admin/Explain  {"of": "fc-…"} -> {"lines": [...]}
    /phalanx.admin.v1.Admin/Plans    {} -> {"recordings": "…"}
    /phalanx.admin.v1.Admin/Drain    {"node": "node-1", "now": false, "reason": "disk", "by": "ann"} -> {"node", "state", "clusters"};
                                     so are Cordon, Uncordon and Remove
    /phalanx.admin.v1.Admin/Logs     {"of": "cu-…", "rank": 1} -> {"lines": [...], "next": "…", "done": false}

A refusal is a gRPC status with a sentence, as on the client's side, and the token is the client's.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import grpclib.const
from google.protobuf.wrappers_pb2 import StringValue
from grpclib.const import Cardinality

from phalanx.api.http2_request import Request
from phalanx.api.log_door import LogDoor
from phalanx.api.node_door import NodeDoor
from phalanx.api.plan_door import PlanDoor
from phalanx.api.status_door import StatusDoor
from phalanx.api.transport import errors_for_the_user, token_sentence
from phalanx.model.refusal import Refusal, RefusalKind, invalid
from phalanx.server.server import Server

SERVICE = "phalanx.admin.v1.Admin"

Method = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def admin_mapping(server: Server) -> dict[str, grpclib.const.Handler]:
    """What grpclib serves, to be merged into the client's mapping."""
    plans, nodes = PlanDoor(server), NodeDoor(server)
    methods: dict[str, Method] = {
        "Cordon": nodes.cordon,
        "Drain": nodes.drain,
        "Explain": plans.explain,
        "Logs": LogDoor(server).logs,
        "Plans": plans.plans,
        "Remove": nodes.remove,
        "Status": StatusDoor(server).status,
        "Uncordon": nodes.uncordon,
    }
    return {
        f"/{SERVICE}/{name}": grpclib.const.Handler(_door(server, name, method), Cardinality.UNARY_UNARY, StringValue, StringValue)
        for name, method in methods.items()
    }


def _door(server: Server, name: str, method: Method) -> Any:
    async def serve(stream: Request) -> None:
        with errors_for_the_user(f"Admin/{name}"):
            request = await stream.recv_message()
            _let_in(server, stream)
            await stream.send_message(StringValue(value=json.dumps(await method(_json_of(request.value)))))

    return serve


def _let_in(server: Server, stream: Request) -> None:
    if stream.task is not None:
        raise Refusal(RefusalKind.DENIED, "this is not for containers: ask with your own token, outside of the function")
    metadata = stream.metadata or {}
    token_id, token_secret = str(metadata.get("x-modal-token-id", "")), str(metadata.get("x-modal-token-secret", ""))
    if not server.is_token(token_id, token_secret):
        raise Refusal(RefusalKind.UNAUTHENTICATED, token_sentence(token_id))


def _json_of(text: str) -> dict[str, Any]:
    try:
        request = json.loads(text or "{}")
    except ValueError as error:
        raise invalid(f"the request is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise invalid("the request is not a JSON object")
    return request
