"""Environments: name spaces for apps inside the one workspace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from phalanx.model.app import App, Environment
from phalanx.model.refusal import Refusal, RefusalKind, invalid, not_found
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

DEFAULT = "main"
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}")


class Environments:
    """The noun `server.environments`. There is always exactly one default."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._environments: dict[str, Environment] = server.world[Environment]

    def start(self) -> None:
        """A new state folder gets its default environment."""
        if self._environments:
            return
        unit = self._server.unit()
        unit.put(Environment(DEFAULT, self._server.new_id("en"), is_default=True, created_ms=self._server.now_ms()))
        self._server.commit_soon(unit)

    def get(self, name: str) -> Environment:
        """By name; no name is the default."""
        if not name:
            return next(environment for environment in self._environments.values() if environment.is_default)
        if name not in self._environments:
            known = ", ".join(sorted(self._environments))
            raise not_found("Environment", name, f"There are: {known}. `modal environment create {name}` makes it")
        return self._environments[name]

    def all(self) -> list[Environment]:
        return sorted(self._environments.values(), key=lambda environment: environment.created_ms)

    def create(self, unit: Unit, name: str) -> Environment:
        self._check_name(name)
        environment = Environment(name, self._server.new_id("en"), created_ms=self._server.now_ms())
        unit.put(environment)
        return environment

    def delete(self, unit: Unit, name: str, by: str) -> None:
        """Stop all apps of it and forget it."""
        environment = self._named(name)
        if environment.is_default:
            raise Refusal(RefusalKind.CONFLICT, f"environment '{name}' is the default and can't be deleted")
        for app in self._apps(name):
            self._server.apps.stop(unit, app.app_id, f"environment '{name}' was deleted", by)
        unit.delete(environment)

    def update(self, unit: Unit, name: str, new_name: str | None, webhook_suffix: str | None) -> Environment:
        """None leaves a value as it is."""
        environment = self._named(name)
        if new_name is not None and new_name != name:
            self._check_name(new_name)
            unit.delete(environment)
            environment.name = new_name
            for app in self._apps(name):
                app.environment = new_name
                unit.put(app)
        if webhook_suffix is not None:
            environment.webhook_suffix = webhook_suffix
        unit.put(environment)
        return environment

    def _named(self, name: str) -> Environment:
        if not name:
            raise invalid("name the environment")
        return self.get(name)

    def _apps(self, name: str) -> list[App]:
        return [app for app in self._server.world[App].values() if app.environment == name]

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise invalid(f"environment name '{name}': use up to 64 letters, digits, dashes and underscores, a letter or digit first")
        if name in self._environments:
            raise Refusal(RefusalKind.ALREADY_EXISTS, f"environment '{name}' exists already")
