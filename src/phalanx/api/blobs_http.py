"""The HTTP door: uploads and downloads of blobs through signed URLs (blob_urls.py), streamed to and from disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiohttp import web

from phalanx.api.blob_urls import BlobUrl, key_of
from phalanx.api.listener import Task
from phalanx.model.blob import BlobError
from phalanx.server.server import Server

LOG = logging.getLogger("phalanx.blobs")

CHUNK = 2**20


def blob_protocols(server: Server) -> Callable[[Task | None], asyncio.Protocol]:
    """A protocol for each connection that speaks HTTP/1.1. Who holds a signed URL needs no more: a task is asked nothing else."""
    door = _Door(server)
    http: web.Server | None = None

    def protocol(_: Task | None) -> asyncio.Protocol:
        nonlocal http
        if http is None:
            http = web.Server(door.handle, access_log=None)    # belongs to the running event loop
        return http()

    return protocol


class _Door:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._key = key_of(server.config.join_secret)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            url = BlobUrl.read(request.path, dict(request.query), self._key, self._server.now_ms())
            if (request.method, url.action) == ("PUT", "put"):
                return await self._put(request, url)
            if (request.method, url.action) == ("POST", "complete"):
                return await self._complete(request, url)
            if (request.method, url.action) == ("GET", "get"):
                return await self._get(request, url)
            return _sentence(405, f"{request.method} is not what this URL is for: it is to {url.action}")
        except PermissionError as error:
            return _sentence(403, str(error))
        except BlobError as error:
            return _sentence(400, str(error))

    async def _put(self, request: web.BaseRequest, url: BlobUrl) -> web.StreamResponse:
        blobs = self._server.blobs
        draft = blobs.draft()
        with draft:
            async for chunk in request.content.iter_chunked(CHUNK):
                await asyncio.to_thread(draft.write, chunk)     # hashes and writes: not in the event loop
            if url.part:
                stored = await asyncio.to_thread(draft.keep_as_part, blobs.part_path(url.blob_id, url.part))
            else:
                stored = await asyncio.to_thread(draft.keep, url.blob_id.removeprefix("bl-"))
        return web.Response(status=200, headers={"ETag": f'"{stored.md5}"'})

    async def _complete(self, request: web.BaseRequest, url: BlobUrl) -> web.StreamResponse:
        await request.read()
        _, etag = await asyncio.to_thread(self._server.blobs.join_parts, url.blob_id, url.part)
        answer = f"<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
        return web.Response(status=200, text=answer)

    async def _get(self, request: web.BaseRequest, url: BlobUrl) -> web.StreamResponse:
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
