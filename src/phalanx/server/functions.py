"""Functions: how they are created and checked, bound to parameters, looked up, and how their scaling is changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modal_proto import api_pb2

from phalanx.core import options
from phalanx.core.gpu import read_gpus
from phalanx.core.validate import Rules, complaints, scaling_complaints
from phalanx.model.app import App, Class, Image, Mount
from phalanx.model.cluster import MemberState
from phalanx.model.fleet import Node
from phalanx.model.refusal import Refusal, RefusalKind, invalid, not_found
from phalanx.model.work import Function
from phalanx.server import definition
from phalanx.server.clients import OWN_PYTHON, ClientPackage
from phalanx.server.definition import Asked
from phalanx.server.pool import Pool
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

_GONE = (MemberState.EXITED, MemberState.RELEASED)


@dataclass(frozen=True)
class Created:
    """A function as it now is, and what its creator should know."""

    function: Function
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Stats:
    """`headroom` is how many more inputs the running clusters could take at once."""

    backlog: int = 0
    containers: int = 0
    running_inputs: int = 0
    headroom: int = 0


class Functions:
    """The noun `server.functions`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._functions: dict[str, Function] = server.world[Function]

    def get(self, function_id: str) -> Function:
        function = self._functions.get(function_id)
        if function is None:
            raise not_found("Function", function_id, "its app was stopped long ago, or it is of another Phalanx server")
        return function

    def announce(self, app_id: str, existing_id: str) -> str:
        """The id that a function will have: its own from the last deploy, or a fresh one. Nothing is kept until it is created."""
        self._server.apps.get_live(app_id)
        if existing_id in self._functions:
            self._of_app(existing_id, app_id)
        return existing_id or self._server.new_id("fu")

    async def client_for(self, asked: Asked, client_version: str) -> ClientPackage:
        """The client package that the function's containers will run, for the Python of its image. Made now if it is not there yet."""
        image = self._server.world[Image].get(asked.definition.image_id)
        return await self._server.clients.get(client_version, (image.python_version if image else "") or OWN_PYTHON)

    def create(self, unit: Unit, app_id: str, existing_id: str, asked: Asked, client_version: str) -> Created:
        """Create a function, or give one of an earlier deploy its new definition. A refusal says everything that is wrong with it."""
        app = self._server.apps.get_live(app_id)
        function_id = self.announce(app_id, existing_id)
        function = self._read(app, function_id, asked, client_version)
        self._check(function, asked.definition)
        before = self._functions.get(function_id)
        if before is not None:
            function.created_ms, function.published = before.created_ms, before.published
        followers = self._bound_again(function)     # may refuse: before anything is changed
        for changed in (function, *followers):
            unit.put(changed)
            self._server.gangs.has_new_code(unit, changed.function_id)
        if function.published:
            self._server.gangs.function_changed(unit, function_id)
        unknown = [f"experimental_options on '{function.name}': {sentence}." for sentence in options.unknown(function.options)]
        return Created(function, _warnings(asked.definition) + unknown)

    def bind(self, unit: Unit, function_id: str, params: bytes, options: bytes) -> Function:
        """The function of one parameter set: the same parameters and options give the same one, with one pool of clusters."""
        parent = self.get(function_id)
        if parent.bound_to:
            parent = self.get(parent.bound_to)
        if not params and not options:
            return parent
        self.refuse_version(api_pb2.FunctionOptions.FromString(options).pinned_app_version)
        bound_id = _bound_id(parent.function_id, params, options)
        if bound_id in self._functions and self._functions[bound_id].definition_id:
            return self._functions[bound_id]
        bound = self._bound(parent, bound_id, params, options)
        self._check(bound, definition.ranked_of(bound)[0])
        unit.put(bound)
        if bound.published:
            self._server.gangs.function_changed(unit, bound_id)
        return bound

    def bind_again(self, unit: Unit, function_id: str) -> None:
        """A function got an earlier definition back: its parameter sets follow."""
        for bound in self._bound_again(self.get(function_id)):
            unit.put(bound)

    def bound(self, function_id: str) -> list[Function]:
        """The parameter sets of a function that were ever asked for."""
        return [function for function in self._functions.values() if function.bound_to == function_id]

    def create_class(self, unit: Unit, app_id: str, existing_id: str) -> Class:
        """A class has no content of its own: its service function `Name.*` has it all, and publishing names it."""
        self._server.apps.get_live(app_id)
        known = self._server.world[Class].get(existing_id)
        if known is not None and known.app_id == app_id:
            return known
        made = Class(class_id=self._server.new_id("cs"), app_id=app_id, created_ms=self._server.now_ms())
        unit.put(made)
        return made

    def refuse_version(self, version: int) -> None:
        """Handles pinned to one version of a deployed app."""
        if version:
            raise _unsupported(f"version={version}: calling an earlier version of a deployed app is not supported yet; leave it out")

    def deployed(self, environment: str, app_name: str, tag: str) -> Function:
        """A function of a deployed app by its name."""
        app = self.deployed_app(environment, app_name)
        function = self._functions.get(app.function_ids.get(tag, ""))
        if function is None:
            names = ", ".join(sorted(app.function_ids)) or "none"
            raise not_found("Function", tag, f"app '{app_name}' has: {names}")
        return function

    def deployed_app(self, environment: str, app_name: str) -> App:
        place = self._server.environments.get(environment).name
        app = self._server.apps.deployed(place, app_name)
        if app is None:
            raise not_found("App", app_name, f"it is not deployed in environment '{place}': run `modal deploy` first")
        return app

    def set_scaling(self, unit: Unit, function_id: str, settings: bytes) -> api_pb2.AutoscalerSettings:
        """Change what is set in the serialized AutoscalerSettings, until the next deploy. Returns all that hold now."""
        function = self.get(function_id)
        asked = api_pb2.AutoscalerSettings.FromString(settings)
        least = asked.min_containers if asked.HasField("min_containers") else function.min_nodes
        most = asked.max_containers if asked.HasField("max_containers") else function.max_nodes
        spare = asked.buffer_containers if asked.HasField("buffer_containers") else function.buffer_nodes
        idle_s = asked.scaledown_window if asked.HasField("scaledown_window") else function.scaledown_s
        wrong = scaling_complaints(function, least, most, spare, idle_s)
        if wrong:
            raise invalid(" ".join(wrong))
        function.min_nodes, function.max_nodes, function.buffer_nodes, function.scaledown_s = least, most, spare, idle_s
        overrides = api_pb2.AutoscalerSettings.FromString(function.autoscaler_override)
        overrides.MergeFrom(asked)
        function.autoscaler_override = definition.serialized(overrides)
        unit.put(function)
        self._server.gangs.function_changed(unit, function_id)
        return self.scaling(function)

    def scaling(self, function: Function) -> api_pb2.AutoscalerSettings:
        settings = api_pb2.AutoscalerSettings(
            min_containers=function.min_nodes, buffer_containers=function.buffer_nodes, scaledown_window=function.scaledown_s
        )
        if function.max_nodes:
            settings.max_containers = function.max_nodes
        return settings

    def stats(self, function_id: str) -> Stats:
        """What waits and runs now."""
        function = self.get(function_id)
        pool = self._server.gangs.pools.get(function_id) or Pool(function_id)
        alive = [[m for m in gang.members if m.state not in _GONE] for gang in pool.gangs.values()]
        running = sum(len(gang.open) for gang in pool.gangs.values())
        clusters = sum(bool(members) for members in alive)
        return Stats(
            backlog=len(pool.waiting),
            containers=sum(len(members) for members in alive),
            running_inputs=running,
            headroom=max(clusters * function.max_inputs - running, 0),
        )

    def fleet(self) -> tuple[Node, ...]:
        """Every node that was not removed, down ones too."""
        return self._server.planning.fleet.facts()

    def _of_app(self, function_id: str, app_id: str) -> None:
        if self._functions[function_id].app_id != app_id:
            raise invalid(f"function {function_id} belongs to another app than {app_id}")

    def _read(self, app: App, function_id: str, asked: Asked, client_version: str, bound: bytes = b"") -> Function:
        function = Function(function_id=function_id, app_id=app.app_id, name="", environment=app.environment, client_version=client_version)
        definition.fill(function, asked)
        try:
            gpus = read_gpus(definition.asked_gpus(asked), self.fleet())
        except ValueError as error:
            raise invalid(f"'{function.name}': {error}") from None
        if gpus and len(gpus) != len(asked.ranked):
            raise invalid(f"'{function.name}': a list of GPUs can't mix GPU types with none; take None out of the list")
        function.gpus = [[choice.gpu_type, choice.count, choice.exact] for choice in gpus]
        function.definition_id = definition.definition_id(function_id, asked, bound)
        function.created_ms = self._server.now_ms()
        return function

    def _bound(self, parent: Function, bound_id: str, params: bytes, options: bytes) -> Function:
        asked = Asked(definition.ranked_of(parent), parent.data)
        if options:
            asked = definition.apply_options(asked, api_pb2.FunctionOptions.FromString(options))
        app = self._server.world[App][parent.app_id]
        bound = self._read(app, bound_id, asked, parent.client_version, params)
        bound.bound_to, bound.serialized_params, bound.bind_options, bound.published = parent.function_id, params, options, parent.published
        return bound

    def _bound_again(self, parent: Function) -> list[Function]:
        """The parameter sets of a function under its present definition."""
        again = []
        for old in self.bound(parent.function_id):
            new = self._bound(parent, old.function_id, old.serialized_params, old.bind_options)
            new.created_ms = old.created_ms
            again.append(new)
        return again

    def _check(self, function: Function, asked: api_pb2.Function) -> None:
        self._check_supported(function, asked)
        is_web = bool(asked.webhook_config.type) or any(method.webhook_config.type for method in asked.method_definitions.values())
        rules = Rules(self._server.config.allow_cpu_clusters, self._server.config.max_timeout_s, self.fleet())
        packaged = len(asked.function_serialized) + len(asked.class_serialized)
        wrong = complaints(function, rules, is_web=is_web, packaged_bytes=packaged)
        if wrong:
            raise invalid(" ".join(wrong))
        if is_web:
            raise _unsupported(f"'{function.name}' is a web function: web endpoints are not supported yet; call it with .remote()")
        self._check_files(function)
        refusal = self._server.gangs.fleet_refuses(function)
        if refusal:
            raise invalid(f"'{function.name}': {refusal}")

    def _check_supported(self, function: Function, asked: api_pb2.Function) -> None:
        name = function.name
        if asked.is_server:
            raise _unsupported(f"'{name.removesuffix('.*')}' is a server: @app.server is not supported yet")
        if asked.volume_mounts or asked.shared_volume_mounts or asked.cloud_bucket_mounts or asked.s3_mounts:
            raise _unsupported(f"'{name}' mounts a volume: volumes and bucket mounts are not supported yet")
        if asked.proxy_id:
            raise _unsupported(f"'{name}' uses a proxy: proxies are not supported")

    def _check_files(self, function: Function) -> None:
        world = self._server.world
        image = world[Image].get(function.image_id) if function.image_id else None
        if function.image_id and image is None:
            raise not_found("Image", function.image_id, f"'{function.name}' uses it; create it in this app first")
        if image is not None and image.refusal:
            raise invalid(f"'{function.name}': {image.refusal}")
        for mount_id in function.mount_ids:
            if mount_id not in world[Mount]:
                raise not_found("Mount", mount_id, f"'{function.name}' uses it; create it in this app first")
        for secret_id in function.secret_ids:
            self._server.secrets.get(secret_id)


def _bound_id(function_id: str, params: bytes, options: bytes) -> str:
    digest = hashlib.sha256(b"\0".join((function_id.encode(), hashlib.sha256(params).digest(), options))).hexdigest()
    return f"fu-{digest[:22]}"


def _warnings(asked: api_pb2.Function) -> list[str]:
    """What is accepted and not acted on."""
    said = []
    if asked.HasField("schedule"):
        said.append(f"'{asked.function_name}' has a schedule: Phalanx does not run schedules yet; call it from cron instead.")
    if asked.checkpointing_enabled:
        said.append(f"'{asked.function_name}' enables memory snapshots: Phalanx starts every container fresh.")
    return said


def _unsupported(sentence: str) -> Refusal:
    return Refusal(RefusalKind.UNIMPLEMENTED, sentence)
