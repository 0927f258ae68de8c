"""RPCs about blobs: where to put and get contents that are too large for a message. The bytes go through blobs_http.py."""

from __future__ import annotations

from typing import Any

from modal_proto import api_pb2

from phalanx.api.blob_urls import VALID_MS, BlobUrl, key_of
from phalanx.model.blob import BlobError
from phalanx.model.caller import Caller
from phalanx.model.cluster import Member
from phalanx.model.refusal import Refusal, RefusalKind, invalid, not_found
from phalanx.server.server import Server
from phalanx.server.unit import Unit

MULTIPART_FROM = 2**30          # the client's own limit: above it, it expects parts
PART_BYTES = 256 * 2**20
# Up to 1.3.5 clients raise "Unknown S3 host" for a plain upload to any other host, and only for a plain one: an upload of one
# part goes everywhere (modal/_utils/blob_utils.py, use_md5). 1.6.4 takes private addresses too.
_PLAIN_HOSTS = frozenset({"127.0.0.1", "localhost", "172.21.0.1"})


class Blobs:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._key = key_of(server.config.join_secret)

    def BlobCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        try:
            blob_id = self._server.blobs.id_for(request.content_sha256_base64)
        except BlobError as error:
            raise invalid(str(error)) from None
        base = self._base(caller)
        answer = api_pb2.BlobCreateResponse(blob_id=blob_id, blob_ids=[blob_id])
        if request.content_length < MULTIPART_FROM and base.removeprefix("http://").rsplit(":", 1)[0] in _PLAIN_HOSTS:
            answer.upload_url = base + self._path("put", blob_id)
            answer.upload_urls.items.append(answer.upload_url)
            return answer
        length = PART_BYTES if request.content_length >= MULTIPART_FROM else max(request.content_length, 1)
        count = max(-(-request.content_length // length), 1)
        upload = self._server.secret()
        answer.multipart.part_length = length
        answer.multipart.upload_urls.extend(base + self._path("put", blob_id, number, upload) for number in range(1, count + 1))
        answer.multipart.completion_url = base + self._path("complete", blob_id, count, upload)
        answer.multiparts.items.append(answer.multipart)
        return answer

    def BlobGet(self, request: Any, caller: Caller, unit: Unit) -> Any:
        if not self._server.blobs.has(request.blob_id.removeprefix("bl-")):
            raise not_found("Blob", request.blob_id, "its upload was not finished, or it was removed with its call")
        return api_pb2.BlobGetResponse(download_url=self._base(caller) + self._path("get", request.blob_id))

    def _path(self, action: str, blob_id: str, part: int = 0, upload: str = "") -> str:
        return BlobUrl(action, blob_id, self._server.now_ms() + VALID_MS, part, upload).path(self._key)

    def _base(self, caller: Caller) -> str:
        """The address by which the one who asks reaches us: containers do only through their shim."""
        if not caller.is_task:
            return f"http://{caller.host or self._server.config.listen}"
        member = self._server.world[Member].get((caller.assignment, caller.rank))
        if member is None or not member.http_address:
            raise Refusal(
                RefusalKind.CONFLICT,
                f"container {caller.task_id} has no way to the control plane's blobs: its agent gave no address for it. "
                "Keep arguments and results below 2 MiB (8 KiB for spawn), or upgrade the agent",
            )
        return f"http://{member.http_address}"
