"""The HTTP door: uploads and downloads of blobs through signed URLs (blob_urls.py), streamed to and from disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from phalanx.api.blob_urls import BlobUrl, key_of
from phalanx.model.blob import BlobError
from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.blobs")

CHUNK = 2**20


def routes(server: Server) -> list[web.RouteDef]:
    """For the HTTP door, for clients and for containers: who holds a signed URL is asked for nothing else."""
    door = _Door(server)
    return [
        web.put("/blobs/put/{blob_id}", door.put),
        web.post("/blobs/complete/{blob_id}", door.complete),
        web.get("/blobs/get/{blob_id}", door.get),
    ]


class _Door:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._key = key_of(server.config.join_secret)

    async def put(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, self._put)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, self._complete)

    async def get(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, self._get)

    async def _answer(
        self, request: web.Request, method: Callable[[web.Request, BlobUrl], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await method(request, BlobUrl.read(request.path, dict(request.query), self._key, self._server.now_ms()))
        except PermissionError as error:
            return _sentence(403, str(error))
        except BlobError as error:
            return _sentence(400, str(error))

    async def _put(self, request: web.Request, url: BlobUrl) -> web.StreamResponse:
        blobs = self._server.blobs
        draft = blobs.draft()
        with draft:
            async for chunk in request.content.iter_chunked(CHUNK):
                await asyncio.to_thread(draft.write, chunk)     # hashes and writes: not in the event loop
            if url.part:
                stored = await asyncio.to_thread(draft.keep_as_part, blobs.part_path(url.blob_id, url.part, url.upload))
            else:
                stored = await asyncio.to_thread(draft.keep, url.blob_id.removeprefix("bl-"))
        return web.Response(status=200, headers={"ETag": f'"{stored.md5}"'})

    async def _complete(self, request: web.Request, url: BlobUrl) -> web.StreamResponse:
        await request.read()
        _, etag = await asyncio.to_thread(self._server.blobs.join_parts, url.blob_id, url.part, url.upload)
        answer = f"<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
        return web.Response(status=200, text=answer)

    async def _get(self, request: web.Request, url: BlobUrl) -> web.StreamResponse:
        path = self._server.blobs.path(url.blob_id.removeprefix("bl-"))
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)})
        await response.prepare(request)
        with open(path, "rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK):
                await response.write(chunk)
        await response.write_eof()
        return response


def _sentence(status: int, text: str) -> web.StreamResponse:
    LOG.info("refused: %s", text)
    return web.Response(status=status, text=text)
