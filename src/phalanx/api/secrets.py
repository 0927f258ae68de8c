"""RPCs about secrets."""

from __future__ import annotations

from typing import Any

from modal_proto import api_pb2

from phalanx.model.caller import Caller
from phalanx.model.refusal import Refusal, RefusalKind
from phalanx.model.secret import Secret
from phalanx.server.server import Server
from phalanx.server.unit import Unit


class Secrets:
    def __init__(self, server: Server) -> None:
        self._secrets = server.secrets

    def SecretGetOrCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """Partly: secrets with values in the program (from_dict, from_local_environ, from_dotenv, env=); those with a name are refused."""
        if request.deployment_name:
            raise Refusal(
                RefusalKind.UNIMPLEMENTED,
                f"Secrets with a name are not supported by this Phalanx server ('{request.deployment_name}'): use "
                "modal.Secret.from_local_environ([…]), modal.Secret.from_dotenv() or env={…} of the function",
            )
        secret = self._secrets.create(unit, request.env_dict)
        return _answer(api_pb2.SecretGetOrCreateResponse(secret_id=secret.secret_id), secret)

    def SecretGetInfo(self, request: Any, caller: Caller, unit: Unit) -> Any:
        return _answer(api_pb2.SecretGetInfoResponse(), self._secrets.get(request.secret_id))


def _answer(answer: Any, secret: Secret) -> Any:
    """With the names of its variables, for clients that want to know them. Never with a value."""
    answer.metadata.keys.extend(sorted(secret.values))
    answer.metadata.creation_info.created_at = secret.created_ms / 1000
    return answer
