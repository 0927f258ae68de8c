"""HTTP/1.1 on the server's sockets: blobs for everyone who has a signed URL, and for people the few pages."""

from __future__ import annotations

import asyncio

from aiohttp import web

from phalanx.api import blobs_http, pages
from phalanx.api.http2_request import Task
from phalanx.server.server import Server


class HttpDoor:
    """`protocol` serves one connection; it is what the listener wants."""

    def __init__(self, public: web.AppRunner, tasks: web.AppRunner) -> None:
        self._public = public
        self._tasks = tasks

    @classmethod
    async def open(cls, server: Server) -> HttpDoor:
        blobs = blobs_http.routes(server)
        return cls(await _runner([*blobs, *pages.routes(server)]), await _runner(blobs))

    def protocol(self, task: Task | None) -> asyncio.Protocol:
        runner = self._public if task is None else self._tasks
        assert runner.server is not None
        return runner.server()  # type: ignore[no-any-return]

    async def close(self) -> None:
        for runner in (self._public, self._tasks):
            await runner.cleanup()


async def _runner(routes: list[web.RouteDef]) -> web.AppRunner:
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    return runner
