"""Puts the nouns, the transport and the sockets together: what `python -m phalanx.serve` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from phalanx.api.apps import Apps
from phalanx.api.calls import Calls
from phalanx.api.containers import Containers
from phalanx.api.deployments import Deployments
from phalanx.api.environments import Environments
from phalanx.api.identity import Identity
from phalanx.api.listener import Listener, Task
from phalanx.api.transport import Transport
from phalanx.server.server import Server


def servicers(server: Server) -> list[Any]:
    """One servicer a noun: each method is an RPC."""
    return [
        Apps(server),
        Calls(server),
        Containers(server),
        Deployments(server),
        Environments(server),
        Identity(server),
    ]


def listener(server: Server, http: Callable[[Task | None], asyncio.Protocol]) -> Listener:
    """Everything the server offers, ready to be given sockets."""
    return Listener(Transport(server, servicers(server)).mapping(), server.agents.__mapping__(), http, server.gangs.authenticate)
