"""The HTTP door: what a connection that does not speak gRPC finds. Pages for people, blobs for clients and containers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from phalanx.api.blobs_http import BlobDoor
from phalanx.api.listener import Task
from phalanx.api.pages import Pages
from phalanx.server.server import Server


def http_protocols(server: Server) -> Callable[[Task | None], asyncio.Protocol]:
    """A protocol for each connection that speaks HTTP/1.1."""
    pages, blobs = Pages(server), BlobDoor(server)
    http: web.Server | None = None

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return await pages.answer(request) or await blobs.handle(request)

    def protocol(_: Task | None) -> asyncio.Protocol:
        nonlocal http
        if http is None:
            http = web.Server(handle, access_log=None)    # belongs to the running event loop
        return http()

    return protocol
