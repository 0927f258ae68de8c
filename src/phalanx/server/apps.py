"""Apps: how they begin, who keeps them alive, and how they end. Publishing is in deployments.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from phalanx.core.states import move_app
from phalanx.model.app import App, AppState
from phalanx.model.cluster import Cause, MemberState
from phalanx.model.refusal import Refusal, RefusalKind, invalid, not_found
from phalanx.model.work import Function
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

CLIENT_GONE_MS = 75_000             # a client beats every 15 s and gives one beat 15 s: five are missing
WATCH_EVERY_MS = 5_000
LIST_STOPPED_MS = 2 * 60 * 60_000   # `modal app list` hides nothing by itself, and every `modal run` leaves an app behind

LIVE = frozenset({AppState.EPHEMERAL, AppState.DETACHED, AppState.DETACHED_DISCONNECTED, AppState.DEPLOYED, AppState.INITIALIZING})
_NEEDS_CLIENT = frozenset({AppState.EPHEMERAL, AppState.DETACHED, AppState.INITIALIZING})
_CREATABLE = frozenset({AppState.EPHEMERAL, AppState.DETACHED, AppState.INITIALIZING, AppState.DEPLOYED})


class Apps:
    """The noun `server.apps`. Methods that take a unit change the world; the others only look."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._apps: dict[str, App] = server.world[App]
        self._heard_ms: dict[str, int] = {}     # of this server's life: beats are too many for rows, and too short-lived
        self._began_ms = server.now_ms()        # a client that was silent because we were away gets its time from here

    def start(self) -> None:
        """Begin to watch over clients that go without a word."""
        self._server.clock.call_after(WATCH_EVERY_MS, self._watch)

    def create(
        self, unit: Unit, *, state: int, environment: str, description: str, tags: Mapping[str, str], by: str, client_version: str
    ) -> App:
        """A new app, ephemeral unless it says otherwise."""
        state = state or AppState.EPHEMERAL
        if state not in _CREATABLE:
            raise invalid(f"an app can't begin in state {state}: use EPHEMERAL (1), DETACHED (2) or INITIALIZING (6)")
        app = App(
            app_id=self._server.new_id("ap"),
            environment=self._server.environments.get(environment).name,
            description=description,
            state=AppState(state),
            tags=dict(tags),
            created_ms=self._server.now_ms(),
            created_by=by,
            client_version=client_version,
        )
        unit.put(app)
        return app

    def get(self, app_id: str) -> App:
        """The app, or a refusal that says there is none."""
        app = self._apps.get(app_id)
        if app is None:
            raise not_found("App", app_id, "`modal app list` shows the apps of an environment")
        return app

    def get_live(self, app_id: str) -> App:
        """The app if it can still change; a stopped one is refused with its reason."""
        app = self.get(app_id)
        if app.state not in LIVE:
            why = f": {app.stop_reason}" if app.stop_reason else ""
            raise Refusal(RefusalKind.CONFLICT, f"app '{app.name or app_id}' is stopped{why}. Run or deploy it again")
        return app

    def deployed(self, environment: str, name: str) -> App | None:
        """The app that is deployed under a name now."""
        return next((app for app in self._named(environment, name) if app.state == AppState.DEPLOYED), None)

    def previous(self, environment: str, name: str) -> App | None:
        """The app that was last deployed under a name and is stopped."""
        stopped = [app for app in self._named(environment, name) if app.state not in LIVE]
        return max(stopped, key=lambda app: app.stopped_ms or app.created_ms, default=None)

    def listed(self, environment: str) -> list[App]:
        """Live apps, and those that stopped a short while ago; newest first."""
        since = self._server.now_ms() - LIST_STOPPED_MS
        apps = (a for a in self._apps.values() if a.environment == environment and (a.state != AppState.STOPPED or a.stopped_ms >= since))
        return sorted(apps, key=lambda app: app.created_ms, reverse=True)

    def running_tasks(self, app_id: str) -> int:
        gone = (MemberState.EXITED, MemberState.RELEASED)
        return sum(member.state not in gone for gang in self._server.gangs.of_app(app_id) for member in gang.members)

    def heartbeat(self, unit: Unit, app_id: str) -> None:
        """The client that owns the app is there. Beats are not rows: after a restart every client starts with its full time."""
        app = self.get(app_id)
        if app.state == AppState.DETACHED_DISCONNECTED:     # it had only lost its network
            move_app(app, AppState.DETACHED)
            unit.put(app)
        if app.state in _NEEDS_CLIENT:
            self._heard_ms[app_id] = self._server.now_ms()

    def disconnect(self, unit: Unit, app_id: str, reason: str) -> None:
        """The client says good-bye. Ephemeral apps end; detached ones when no work of them is open; deployed ones stay."""
        app = self.get(app_id)
        if app.state in _NEEDS_CLIENT:
            self._client_left(unit, app, reason)
        elif app.state == AppState.DEPLOYED:
            self._server.deployments.abandon(unit, app)

    def stop(self, unit: Unit, app_id: str, reason: str, by: str = "") -> None:
        """End all its calls and clusters. It is STOPPED when the last of them, and the last log line, is in. Again is no error."""
        app = self.get(app_id)
        if app.state not in LIVE:
            return
        move_app(app, AppState.STOPPING)
        app.stop_reason = reason
        app.stopped_by = by
        unit.put(app)
        for function in self.functions(app_id):
            if function.published:
                function.published = False
                unit.put(function)
        self._heard_ms.pop(app_id, None)
        unit.after(lambda: self._server.topics.wake(("app", app_id)))
        self._server.gangs.stop_app(unit, app_id, Cause.STOPPED, reason)
        if self._server.gangs.app_is_quiet(app_id):
            self.drained(unit, app_id)

    def drained(self, unit: Unit, app_id: str) -> None:
        """Nothing of a stopping app runs any more, and every log line of it is in. Again is no error."""
        app = self._apps.get(app_id)
        if app is None or app.state != AppState.STOPPING:
            return
        move_app(app, AppState.STOPPED)
        app.drained = True
        app.stopped_ms = self._server.now_ms()
        unit.put(app)
        unit.after(lambda: self._server.topics.wake(("app", app_id)))

    def set_tags(self, unit: Unit, app_id: str, tags: Mapping[str, str]) -> None:
        app = self.get_live(app_id)
        app.tags = dict(tags)
        unit.put(app)

    def functions(self, app_id: str) -> list[Function]:
        """Every function of the app, parameter sets of classes included."""
        return [function for function in self._server.world[Function].values() if function.app_id == app_id]

    def has_work(self, app_id: str) -> bool:
        """An input of the app is not decided yet."""
        return self._server.calls.has_open(app_id)

    def input_decided(self, unit: Unit, app_id: str) -> None:
        """An output was written: a detached app without its client ends with its last one, once that is on disk."""
        app = self._apps.get(app_id)
        if app is not None and app.state == AppState.DETACHED_DISCONNECTED:
            unit.after(lambda: self._after_an_output(app))

    def _after_an_output(self, app: App) -> None:
        self._server.act(lambda unit: self._end_without_work(unit, app))

    def _end_without_work(self, unit: Unit, app: App) -> None:
        if app.state == AppState.DETACHED_DISCONNECTED and not self.has_work(app.app_id):
            self.stop(unit, app.app_id, "its last call has ended")

    def _named(self, environment: str, name: str) -> list[App]:
        return [app for app in self._apps.values() if app.name == name and app.environment == environment]

    def _client_left(self, unit: Unit, app: App, reason: str) -> None:
        if app.state != AppState.DETACHED or not self.has_work(app.app_id):
            self.stop(unit, app.app_id, reason)
            return
        move_app(app, AppState.DETACHED_DISCONNECTED)
        unit.put(app)

    def _watch(self) -> None:
        now = self._server.now_ms()
        unit = self._server.unit()
        for app in list(self._apps.values()):
            if app.state == AppState.STOPPED or app.state == AppState.DEPLOYED:
                continue
            silent_ms = now - max(self._heard_ms.get(app.app_id, 0), app.created_ms, self._began_ms)
            if app.state in _NEEDS_CLIENT and silent_ms > CLIENT_GONE_MS:
                self._client_left(unit, app, f"the client that ran it was not heard of for {silent_ms // 1000} s")
            elif app.state == AppState.DETACHED_DISCONNECTED:
                self._end_without_work(unit, app)
            elif app.state == AppState.STOPPING and self._server.gangs.app_is_quiet(app.app_id):
                self.drained(unit, app.app_id)
        self._server.commit_soon(unit)
        self._server.clock.call_after(WATCH_EVERY_MS, self._watch)
