"""RPCs that bring files and images: mounts, the default image."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from modal_proto import api_pb2

from phalanx.model.app import Image
from phalanx.model.blob import BlobError
from phalanx.model.caller import Caller
from phalanx.model.refusal import invalid
from phalanx.server.server import Server
from phalanx.server.unit import Unit


class Files:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def MountGetOrCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        if request.deployment_name and not request.files:
            package = await self._server.mounts.client_package(request.deployment_name)
            mount = self._server.mounts.client_mount(unit, package)
        else:
            mount = self._server.mounts.create(unit, [(file.filename, file.sha256_hex, file.mode) for file in request.files])
        answer = api_pb2.MountGetOrCreateResponse(mount_id=mount.mount_id)
        answer.handle_metadata.content_checksum_sha256_hex = mount.checksum
        return answer

    def MountBatchedCheckExistence(self, request: Any, caller: Caller, unit: Unit) -> Any:
        missing = self._server.mounts.missing(list(request.sha256_hex_hashes))
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing, checked_at=self._now())

    async def MountPutFile(self, request: Any, caller: Caller, unit: Unit) -> Any:
        """With data it is an upload; clients up to 1.3.5 ask without any whether the content is here."""
        try:
            if request.WhichOneof("data_oneof") == "data":
                await asyncio.to_thread(self._server.blobs.put, request.data, request.sha256_hex)
            elif request.data_blob_id and request.data_blob_id != f"bl-{request.sha256_hex}":
                raise BlobError(f"blob {request.data_blob_id} holds other content than {request.sha256_hex}: the file changed meanwhile")
        except BlobError as error:
            raise invalid(str(error)) from None
        return api_pb2.MountPutFileResponse(exists=self._server.blobs.asked(request.sha256_hex), checked_at=self._now())

    def ImageGetOrCreate(self, request: Any, caller: Caller, unit: Unit) -> Any:
        image = self._server.images.create(unit, request.image.SerializeToString(), request.builder_version)
        return api_pb2.ImageGetOrCreateResponse(image_id=image.image_id, result=_result(image), metadata=_metadata(image))

    async def ImageJoinStreaming(self, request: Any, caller: Caller) -> AsyncIterator[Any]:
        """Nothing is ever being built: the first answer is the last."""
        image = self._server.images.get(request.image_id)
        yield api_pb2.ImageJoinStreamingResponse(result=_result(image), metadata=_metadata(image), eof=True)

    def _now(self) -> Timestamp:
        moment = Timestamp()
        moment.FromMilliseconds(self._server.now_ms())
        return moment


def _result(image: Image) -> Any:
    if image.refusal:
        return api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE, exception=image.refusal)
    return api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)


def _metadata(image: Image) -> Any:
    metadata = api_pb2.ImageMetadata(image_builder_version=image.builder_version)
    if image.python_version:
        metadata.python_version_info = f"Python {image.python_version}"
    return metadata
