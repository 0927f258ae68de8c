"""Logins: `modal token new` asks for a token, its owner gives it on a page of this server.

They live in memory: one that a restart forgets is begun again by hand, and nobody wants an old one to be answered later.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.model.refusal import not_found

if TYPE_CHECKING:
    from phalanx.server.server import Server

KEEP_MS = 15 * 60_000
LONGEST_WAIT_S = 55


@dataclass
class Login:
    login_id: str
    wait_secret: str        # only the client that began it may fetch the token
    code: str               # shown by the client and by the page: the user compares
    created_ms: int
    approved: bool = False


class Logins:
    """The noun `server.logins`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._logins: dict[str, Login] = {}

    def begin(self) -> Login:
        now = self._server.now_ms()
        self._logins = {key: login for key, login in self._logins.items() if now - login.created_ms < KEEP_MS}
        code = "".join(self._server.randomness.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(6))
        login = Login(self._server.new_id("tf"), self._server.new_id("ts"), code, now)
        self._logins[login.login_id] = login
        return login

    def get(self, login_id: str) -> Login:
        login = self._logins.get(login_id)
        if login is None or self._server.now_ms() - login.created_ms >= KEEP_MS:
            raise not_found("Login", login_id, "It is older than 15 minutes, or the server restarted: begin again with `modal token new`")
        return login

    def approve(self, login_id: str, token_id: str, token_secret: str) -> bool:
        """Whoever knows the token gives it to the client that waits."""
        login = self.get(login_id)
        if not self._server.is_token(token_id, token_secret):
            return False
        login.approved = True
        self._server.topics.wake(("login", login_id))
        return True

    async def wait(self, login_id: str, wait_secret: str, timeout_s: float) -> bool:
        """True once it is approved, False at the timeout."""
        login = self.get(login_id)
        if not hmac.compare_digest(login.wait_secret.encode(), wait_secret.encode()):
            raise not_found("Login", login_id, "Only the client that began it can wait for it")
        if not login.approved:
            await self._server.topics.wait(("login", login_id), max(0.0, min(timeout_s, LONGEST_WAIT_S)))
        return login.approved
