"""Who asks: a client with a token, or a container behind its shim's socket."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """One request's sender. `task_id` is set for containers: their RPCs do not say which task they come from, the socket does."""

    name: str                   # token id, or task id: the scope of idempotency keys
    task_id: str = ""
    assignment: int = 0
    rank: int = 0
    client_version: str = ""
    python_version: str = ""    # "3.11", as the client says
    idempotency_key: str = ""
    host: str = ""              # the authority the client reached us by: URLs in answers use it
    unix_socket: bool = False

    @property
    def is_task(self) -> bool:
        return bool(self.task_id)
