"""Secrets of a program: environment variables that the client sends as values (from_dict, from_dotenv, env= of a function)."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from phalanx.model.refusal import invalid, not_found
from phalanx.model.secret import Secret
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

LONGEST = 131_000           # bytes of NAME=value: the kernel takes 128 KiB with its end
# What the runner finds its way by: a secret that holds one of these does not change it.
RESERVED = frozenset(("MODAL_SERVER_URL", "MODAL_CONTAINER_ARGUMENTS_PATH", "PYTHONUNBUFFERED"))


class Secrets:
    """The noun `server.secrets`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._secrets: dict[str, Secret] = server.world[Secret]

    def create(self, unit: Unit, values: Mapping[str, str]) -> Secret:
        """A secret without a name. The same values are the same secret: so a function that is deployed again is the same function.

        The id tells nobody who has not this control plane's key what the values are.
        """
        for name, value in values.items():
            _check(name, value)
        content = json.dumps(sorted(values.items())).encode()
        digest = hmac.new(self._server.config.join_secret.encode(), b"secret\0" + content, hashlib.sha256).hexdigest()
        secret = Secret(f"st-{digest[:22]}", dict(values), self._server.now_ms())
        unit.put(secret)        # again, too: it is as old as its last use
        return secret

    def get(self, secret_id: str) -> Secret:
        secret = self._secrets.get(secret_id)
        if secret is None:
            raise not_found("Secret", secret_id, "run or deploy the app again")
        return secret

    def environment(self, secret_ids: Iterable[str]) -> dict[str, str]:
        """The variables of all of them; where two have the same one, that of the later."""
        found: dict[str, str] = {}
        for secret_id in secret_ids:
            found |= self.get(secret_id).values
        return {name: value for name, value in found.items() if name not in RESERVED}

    def unused(self, before_ms: int) -> list[Secret]:
        """Older than that, and no function names them, nor an earlier version of one."""
        named = {secret_id for function in self._server.world.functions_of_all_versions() for secret_id in function.secret_ids}
        return [secret for secret in self._secrets.values() if secret.created_ms < before_ms and secret.secret_id not in named]


def _check(name: str, value: str) -> None:
    if not name or "=" in name or "\0" in name:
        raise invalid(f"{name!r} in a secret can't be the name of an environment variable: it is empty, or has '=' or a zero byte in it")
    if "\0" in value:
        raise invalid(f"the value of {name!r} has a zero byte in it, and an environment variable can't: encode it, as with base64")
    size = len(f"{name}={value}".encode())
    if size > LONGEST:
        raise invalid(f"the value of {name!r} makes a variable of {size} bytes, and {LONGEST} are possible: pass it as an argument")
