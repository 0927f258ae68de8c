"""The server's own door beside the client's: JSON in a StringValue both ways, on the public socket.

    /phalanx.admin.v1.Admin/Status   {} -> {"server": {...}, "nodes": [...], "clusters": [...], "waiting": [...]}
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpclib.client
from google.protobuf.wrappers_pb2 import StringValue
from grpclib import GRPCError
from grpclib.exceptions import ProtocolError, StreamTerminatedError

from phalanx.config import Config

TIMEOUT_S = 10.0


class AdminError(Exception):
    """A sentence for the user."""


def call(listen: str, config: Config, method: str, request: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """One question to the server at HOST:PORT. Raises AdminError."""
    return asyncio.run(_call(listen, config, method, request or {}, timeout_s))


async def _call(listen: str, config: Config, method: str, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    host, _, port = reachable(listen).rpartition(":")
    channel = grpclib.client.Channel(host.strip("[]"), int(port))
    ask = grpclib.client.UnaryUnaryMethod(channel, f"/phalanx.admin.v1.Admin/{method}", StringValue, StringValue)
    token = {"x-modal-token-id": config.token_id, "x-modal-token-secret": config.token_secret}
    try:
        answer = await ask(StringValue(value=json.dumps(request)), timeout=timeout_s, metadata=token)
    except GRPCError as error:
        raise AdminError(error.message or error.status.name) from error
    except TimeoutError as error:
        raise AdminError(f"the server at {listen} did not answer within {timeout_s:.0f} s") from error
    except (StreamTerminatedError, ProtocolError) as error:
        raise AdminError(f"the server at {listen} broke off: it is starting again, or stopping") from error
    except OSError as error:
        raise AdminError(f"nothing answers at {listen}: {error.strerror or error}") from error
    finally:
        channel.close()
    return json.loads(answer.value)


def reachable(listen: str) -> str:
    """An address to connect to, where "all interfaces" is none."""
    host, _, port = listen.rpartition(":")
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"
