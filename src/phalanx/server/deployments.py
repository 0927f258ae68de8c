"""Deployments: what is published under an app, its versions, and the ways back to an earlier one.

Functions keep their ids over redeploys, and a redeploy changes them before it publishes. A version therefore keeps copies of
its functions, and the live version's copies undo a redeploy that failed, was only staged, or is rolled back.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx.core import events as ev
from phalanx.core.states import move_app
from phalanx.model.app import App, AppState, AppVersion, Class, DeploymentType
from phalanx.model.cluster import Cause
from phalanx.model.refusal import Refusal, RefusalKind, invalid, not_found
from phalanx.model.work import Function
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server


@dataclass(frozen=True)
class Publication:
    """What a client wants to publish. Ids by tag; definition ids by function id."""

    by: str
    state: int = 0                              # AppState; 0 keeps the app's
    name: str = ""
    tags: dict[str, str] | None = None          # None keeps the app's: older clients say them elsewhere
    function_ids: dict[str, str] = field(default_factory=dict)
    class_ids: dict[str, str] = field(default_factory=dict)
    definition_ids: dict[str, str] = field(default_factory=dict)
    deployment_tag: str = ""
    commit_info: bytes = b""
    client_version: str = ""
    staged: bool = False


@dataclass(frozen=True)
class Published:
    """`deployed_ms` is 0 when there was nothing to change."""

    deployed_ms: int
    warnings: list[str]


class Deployments:
    """The noun `server.deployments`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._versions: dict[tuple[str, int], AppVersion] = server.world[AppVersion]

    def publish(self, unit: Unit, app_id: str, wanted: Publication) -> Published:
        """Make functions and classes callable. For a deployment this is a new version; an ephemeral app just gets its layout."""
        app = self._server.apps.get_live(app_id)
        deploys = wanted.state == AppState.DEPLOYED or (not wanted.state and app.state == AppState.DEPLOYED)
        self._check(app, wanted, deploys)
        if not deploys:
            return self._lay_out(unit, app, wanted)
        live = self.live_version(app_id)
        if live is not None and not wanted.staged and _same(live, app, wanted):
            return Published(0, [])
        version = AppVersion(
            app_id,
            self._next_number(app_id),
            type=DeploymentType.STAGED if wanted.staged else DeploymentType.STANDARD,
            tag=wanted.deployment_tag,
            commit_info=wanted.commit_info,
            client_version=wanted.client_version,
            tags=dict(app.tags if wanted.tags is None else wanted.tags),
            function_ids=dict(wanted.function_ids),
            class_ids=dict(wanted.class_ids),
            definition_ids=dict(wanted.definition_ids),
            functions=self._copies(app_id, wanted.function_ids),
        )
        app.name = wanted.name or app.name
        app.description = app.description or app.name
        if wanted.staged:
            return self._stage(unit, app, version, live, wanted.by)
        return self._go_live(unit, app, version, wanted.by)

    def roll_back(self, unit: Unit, app_id: str, number: int, by: str, client_version: str) -> Published:
        """Publish an earlier version again, as a new one. `number` -1 is the one before the live one."""
        app = self._deployed(app_id)
        live = self._live(app)
        if number == -1:
            before = [v.version for v in self.history(app_id) if v.version < live.version and v.type != DeploymentType.STAGED]
            if not before:
                raise _conflict(f"app '{app.name}' has no version before v{live.version} to go back to")
            number = before[0]
        version = self._version(app, number)
        if version.type == DeploymentType.STAGED:
            raise _conflict(f"v{number} of app '{app.name}' was only staged: use `modal app promote {app.name} v{number}`")
        if number == live.version:
            raise _conflict(f"v{number} of app '{app.name}' is the live version already")
        return self._again(unit, app, version, DeploymentType.ROLLBACK, by, client_version)

    def roll_over(self, unit: Unit, app_id: str, by: str, client_version: str) -> Published:
        """Publish the live version again: its clusters are outdated from now on and fresh ones take their place."""
        app = self._deployed(app_id)
        return self._again(unit, app, self._live(app), DeploymentType.ROLLOVER, by, client_version)

    def promote(self, unit: Unit, app_id: str, number: int, by: str, client_version: str) -> Published:
        """Make a staged version live, as a new one."""
        app = self._deployed(app_id)
        version = self._version(app, number)
        if version.type != DeploymentType.STAGED:
            raise _conflict(f"v{number} of app '{app.name}' was not staged: use `modal app rollback {app.name} v{number}`")
        return self._again(unit, app, version, DeploymentType.PROMOTION, by, client_version)

    def abandon(self, unit: Unit, app: App) -> None:
        """A redeploy failed half-way: the functions become again what the live version has."""
        live = self.live_version(app.app_id)
        if live is not None:
            self._restore(unit, app, live)

    def history(self, app_id: str) -> list[AppVersion]:
        """All versions, newest first."""
        return sorted((v for v in self._versions.values() if v.app_id == app_id), key=lambda v: v.version, reverse=True)

    def live_version(self, app_id: str) -> AppVersion | None:
        return next((version for version in self.history(app_id) if version.type != DeploymentType.STAGED), None)

    def _check(self, app: App, wanted: Publication, deploys: bool) -> None:
        functions, classes = self._server.world[Function], self._server.world[Class]
        for tag, function_id in wanted.function_ids.items():
            function = functions.get(function_id)
            if function is None or function.app_id != app.app_id:
                raise not_found("Function", function_id, f"'{tag}' must be created in app {app.app_id} before it is published")
            definition_id = wanted.definition_ids.get(function_id, "")
            if definition_id and function.definition_id and definition_id != function.definition_id:
                raise _conflict(f"another deployment of app '{app.name or app.app_id}' changed '{tag}' meanwhile. Deploy again")
        for tag, class_id in wanted.class_ids.items():
            if class_id not in classes or classes[class_id].app_id != app.app_id:
                raise not_found("Class", class_id, f"'{tag}' must be created in app {app.app_id} before it is published")
        if not deploys:
            return
        if app.state not in (AppState.INITIALIZING, AppState.DEPLOYED):
            raise _conflict(f"app {app.app_id} was begun by a run and can't be deployed: use `modal deploy`")
        name = wanted.name or app.name
        if not name:
            raise invalid("a deployment needs a name: give the app one, as in modal.App('my-app')")
        other = self._server.apps.deployed(app.environment, name)
        if other is not None and other.app_id != app.app_id:
            raise Refusal(RefusalKind.ALREADY_EXISTS, f"app '{name}' was deployed as {other.app_id} meanwhile. Deploy again")

    def _lay_out(self, unit: Unit, app: App, wanted: Publication) -> Published:
        app.function_ids = dict(wanted.function_ids)
        app.class_ids = dict(wanted.class_ids)
        app.tags = dict(app.tags if wanted.tags is None else wanted.tags)
        app.deployed_ms = self._server.now_ms()
        unit.put(app)
        for function_id in wanted.function_ids.values():
            self._server.gangs.function_changed(unit, function_id)
        return Published(app.deployed_ms, [])

    def _stage(self, unit: Unit, app: App, version: AppVersion, live: AppVersion | None, by: str) -> Published:
        if live is None:
            raise _conflict(f"app '{app.name}' has no live version yet: deploy it once without staging")
        version.deployed_ms = self._server.now_ms()
        version.deployed_by = by
        unit.put(version)
        self._restore(unit, app, live)
        return Published(version.deployed_ms, self._warnings(version))

    def _again(self, unit: Unit, app: App, source: AppVersion, kind: DeploymentType, by: str, client_version: str) -> Published:
        number = self._next_number(app.app_id)
        version = dataclasses.replace(source, version=number, type=kind, client_version=client_version, source_version=source.version)
        self._restore(unit, app, source)
        return self._go_live(unit, app, version, by)

    def _go_live(self, unit: Unit, app: App, version: AppVersion, by: str) -> Published:
        version.deployed_ms = app.deployed_ms = self._server.now_ms()
        version.deployed_by = by
        if app.state == AppState.INITIALIZING:
            move_app(app, AppState.DEPLOYED)
        app.tags = dict(version.tags)
        app.function_ids = dict(version.function_ids)
        app.class_ids = dict(version.class_ids)
        unit.put(version)
        unit.put(app)
        live_ids = set(app.function_ids.values())
        for function in self._server.apps.functions(app.app_id):
            function.published = function.function_id in live_ids or function.bound_to in live_ids
            unit.put(function)
            self._server.gangs.failed_starts.forgive(unit, function.function_id)
            self._server.gangs.function_changed(unit, function.function_id)
        self._retire(unit, app, version)
        unit.after(lambda: self._server.topics.wake(("app", app.app_id)))
        return Published(version.deployed_ms, self._warnings(version))

    def _retire(self, unit: Unit, app: App, version: AppVersion) -> None:
        """Clusters of the version before finish the inputs they have; the next ones are for the new code."""
        sentence = f"v{version.version} of app '{app.name}' was deployed"
        for gang in self._server.gangs.of_app(app.app_id):
            self._server.gangs.dispatch(unit, gang.assignment.assignment, ev.StopAsked(Cause.IDLE, sentence, graceful=True))

    def _restore(self, unit: Unit, app: App, version: AppVersion) -> None:
        functions = self._server.world[Function]
        for copy in version.functions:
            function = functions.get(copy.function_id)
            if function is None:
                function = dataclasses.replace(copy)
            for changed in dataclasses.fields(Function):
                setattr(function, changed.name, getattr(copy, changed.name))
            function.published = app.state == AppState.DEPLOYED
            unit.put(function)
            self._server.functions.bind_again(unit, function.function_id)
            self._server.gangs.function_changed(unit, function.function_id)

    def _copies(self, app_id: str, function_ids: dict[str, str]) -> list[Function]:
        wanted = set(function_ids.values())
        return [dataclasses.replace(f) for f in self._server.apps.functions(app_id) if f.function_id in wanted]

    def _warnings(self, version: AppVersion) -> list[str]:
        """The fleet may have shrunk since a function was created: say so now rather than when a call waits."""
        functions = ((tag, self._server.world[Function].get(function_id)) for tag, function_id in version.function_ids.items())
        refusals = ((tag, self._server.gangs.fleet_refuses(function)) for tag, function in functions if function is not None)
        return [f"{tag}: {sentence}" for tag, sentence in refusals if sentence]

    def _deployed(self, app_id: str) -> App:
        app = self._server.apps.get_live(app_id)
        if app.state != AppState.DEPLOYED:
            raise _conflict(f"app '{app.name or app_id}' is not deployed: run `modal deploy` first")
        return app

    def _live(self, app: App) -> AppVersion:
        live = self.live_version(app.app_id)
        if live is None:
            raise _conflict(f"app '{app.name}' has no deployed version: run `modal deploy` first")
        return live

    def _version(self, app: App, number: int) -> AppVersion:
        version = self._versions.get((app.app_id, number))
        if version is None:
            raise not_found("Version", f"v{number}", f"`modal app history {app.name}` lists those of app '{app.name}'")
        return version

    def _next_number(self, app_id: str) -> int:
        return max((version.version for version in self.history(app_id)), default=0) + 1


def _conflict(sentence: str) -> Refusal:
    return Refusal(RefusalKind.CONFLICT, sentence)


def _same(live: AppVersion, app: App, wanted: Publication) -> bool:
    """Nothing to deploy. A function without a definition id may have changed, so it has."""
    definitions = {function_id: wanted.definition_ids.get(function_id, "") for function_id in wanted.function_ids.values()}
    return (
        live.function_ids == wanted.function_ids
        and live.class_ids == wanted.class_ids
        and all(definitions.values())
        and definitions == {function_id: live.definition_ids.get(function_id, "") for function_id in live.function_ids.values()}
        and (wanted.tags is None or live.tags == wanted.tags)
        and not wanted.deployment_tag
        and app.name == (wanted.name or app.name)
    )
