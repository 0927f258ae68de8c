"""Gangs: the running core. Being written; the public calls that other nouns use stand here first."""

from __future__ import annotations

from phalanx.model.work import Function
from phalanx.server.unit import Unit


class Gangs:
    def stop_app(self, unit: Unit, app_id: str, cause: str, sentence: str) -> None:
        """End all calls and clusters of an app. `server.apps.drained(unit, app_id)` is called once nothing of it runs and all logs are in."""

    def app_is_quiet(self, app_id: str) -> bool:
        """No cluster of the app is left, and every log line of it is in."""
        return True

    def function_changed(self, unit: Unit, function_id: str) -> None:
        """A function was published, or its autoscaler settings changed: plan again."""

    def fleet_refuses(self, function: Function) -> str:
        """Why the fleet can never run this function ("can never fit: …"), or an empty string. Called before a function is created."""
        return ""
