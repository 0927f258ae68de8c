"""The few pages that the client's own output leads people to: an app ("View run at"), and the login of `modal token new`."""

from __future__ import annotations

import html

from aiohttp import web

from phalanx.model.app import App, AppState
from phalanx.model.refusal import Refusal
from phalanx.server.server import Server


def routes(server: Server) -> list[web.RouteDef]:
    """For the HTTP door, beside blobs."""
    pages = _Pages(server)
    return [
        web.get("/apps/{app_id}", pages.app),
        web.get("/login/{login_id}", pages.ask_for_token),
        web.post("/login/{login_id}", pages.take_token),
    ]


class _Pages:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def app(self, request: web.Request) -> web.Response:
        """Shown to whoever knows the app's id, which nobody can guess: its state, and the commands that say more."""
        app = self._server.world[App].get(request.match_info["app_id"])
        if app is None:
            return _page("No such app", "<p>This server has no app of that id.</p>", status=404)
        commands = "\n".join(f"modal app {command} {app.app_id}" for command in ("logs", "info", "history", "stop"))
        why = f" ({html.escape(app.stop_reason)})" if app.stop_reason else ""
        state = AppState(app.state).name.lower()
        return _page(app.name or app.description or app.app_id, f"<p>{app.app_id} is {state}{why}.</p><pre>{commands}</pre>")

    async def ask_for_token(self, request: web.Request) -> web.Response:
        return self._login(request.match_info["login_id"], "")

    async def take_token(self, request: web.Request) -> web.Response:
        fields = await request.post()
        login_id = request.match_info["login_id"]
        try:
            approved = self._server.logins.approve(login_id, str(fields.get("token_id", "")), str(fields.get("token_secret", "")))
        except Refusal as refusal:
            return _page("Login", f"<p>{html.escape(refusal.sentence)}</p>", status=404)
        if not approved:
            return self._login(login_id, "<p>That is not the token of this server.</p>", status=403)
        return _page("Login", "<p>Done: the client that asked has the token. You can close this page.</p>")

    def _login(self, login_id: str, said: str, status: int = 200) -> web.Response:
        try:
            login = self._server.logins.get(login_id)
        except Refusal as refusal:
            return _page("Login", f"<p>{html.escape(refusal.sentence)}</p>", status=404)
        form = (
            f"<p>A client with the code <b>{login.code}</b> asks for this server's token. Compare the code, "
            "then enter the token that <code>phalanx up</code> printed.</p>"
            '<form method="post"><p><input name="token_id" placeholder="ak-…" autocomplete="off"></p>'
            '<p><input name="token_secret" type="password" placeholder="as-…"></p><button>Log in</button></form>'
        )
        return _page("Login", said + form, status)


def _page(title: str, body: str, status: int = 200) -> web.Response:
    title = html.escape(title)
    text = f'<!doctype html><meta charset="utf-8"><title>{title} · Phalanx</title><h1>{title}</h1>{body}\n'
    headers = {"X-Frame-Options": "DENY", "Cache-Control": "no-store"}
    return web.Response(text=text, status=status, content_type="text/html", headers=headers)
