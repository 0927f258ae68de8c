"""Apps, environments and what belongs to them. Rows of the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass
class Environment:
    KEY: ClassVar = ("name",)

    name: str
    environment_id: str
    is_default: bool = False
    created_ms: int = 0


@dataclass
class App:
    """`state` is api_pb2.AppState: EPHEMERAL 1, DETACHED 2, DEPLOYED 3, STOPPING 4, STOPPED 5, INITIALIZING 6, ..."""

    KEY: ClassVar = ("app_id",)

    app_id: str
    environment: str
    description: str = ""
    name: str = ""                              # the deployment's name, once deployed
    state: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    function_ids: dict[str, str] = field(default_factory=dict)   # tag -> id, as last published
    class_ids: dict[str, str] = field(default_factory=dict)
    created_ms: int = 0
    heartbeat_ms: int = 0                       # of the client that owns an ephemeral app
    stopped_ms: int = 0
    stop_reason: str = ""
    drained: bool = False                       # stopped, and every log line is in
    client_version: str = ""


@dataclass
class AppVersion:
    """One publication of a deployed app, for its history and roll-backs."""

    KEY: ClassVar = ("app_id", "version")

    app_id: str
    version: int
    deployed_ms: int = 0
    deployed_by: str = ""
    client_version: str = ""
    tag: str = ""
    commit_info: bytes = b""
    function_ids: dict[str, str] = field(default_factory=dict)
    class_ids: dict[str, str] = field(default_factory=dict)
    rollback_to: int = 0


@dataclass
class Class:
    KEY: ClassVar = ("class_id",)

    class_id: str
    app_id: str
    name: str = ""
    function_id: str = ""
    created_ms: int = 0


@dataclass
class Image:
    KEY: ClassVar = ("image_id",)

    image_id: str
    definition: bytes = b""
    builder_version: str = ""
    python_version: str = ""                    # the minor that the default image is served with; "" takes the node's
    refusal: str = ""                           # why it can't be served, found when a function wants to use it
    created_ms: int = 0


@dataclass
class Mount:
    """A set of files in containers: path -> (sha256, mode). Doubles as a layer for the agents."""

    KEY: ClassVar = ("mount_id",)

    mount_id: str
    name: str = ""                              # of a global one: modal-client-mount-1.6.4
    checksum: str = ""
    files: dict[str, list[object]] = field(default_factory=dict)   # absolute path -> [sha256, mode]
    folder: str = ""                            # instead of files: a folder of this machine that holds the tree
    created_ms: int = 0
