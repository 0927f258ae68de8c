"""Who did it and where to look: names and addresses in answers that people read."""

from __future__ import annotations

from phalanx.model.app import App
from phalanx.model.caller import Caller
from phalanx.server.server import Server


def name_of(server: Server, caller: Caller) -> str:
    """One workspace with one token has one user; a container acts in its own name."""
    return caller.task_id or server.config.workspace


def host_of(server: Server, caller: Caller) -> str:
    """host:port by which people reach this server: a container's own way in is not theirs."""
    return server.config.listen if caller.unix_socket or not caller.host else caller.host


def page_of(server: Server, caller: Caller, app: App) -> str:
    """The address that the client prints as "View run at"."""
    return f"http://{host_of(server, caller)}/apps/{app.app_id}"
