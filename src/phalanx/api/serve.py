"""Puts the nouns, the transport and the sockets together: what `python -m phalanx.serve` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from phalanx.api.admin import admin_mapping
from phalanx.api.apps import Apps
from phalanx.api.blobs import Blobs
from phalanx.api.calls import Calls
from phalanx.api.containers import Containers
from phalanx.api.deployments import Deployments
from phalanx.api.environments import Environments
from phalanx.api.files import Files
from phalanx.api.functions import Functions
from phalanx.api.http2_request import Task
from phalanx.api.identity import Identity
from phalanx.api.listener import Listener
from phalanx.api.logs import Logs
from phalanx.api.secrets import Secrets
from phalanx.api.tasks import Tasks
from phalanx.api.transport import Transport
from phalanx.server.server import Server


def servicers(server: Server) -> list[Any]:
    """One servicer a noun: each method is an RPC."""
    return [
        Apps(server),
        Blobs(server),
        Calls(server),
        Containers(server),
        Deployments(server),
        Environments(server),
        Files(server),
        Functions(server),
        Identity(server),
        Logs(server),
        Secrets(server),
        Tasks(server),
    ]


def listener(server: Server, http: Callable[[Task | None], asyncio.Protocol]) -> Listener:
    """Everything the server offers, ready to be given sockets."""
    mapping = Transport(server, servicers(server)).mapping() | admin_mapping(server)
    return Listener(mapping, server.agents.__mapping__(), http, server.gangs.authenticate)
