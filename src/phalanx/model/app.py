"""Apps, environments and what belongs to them. Rows of the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

from phalanx.model.work import Function


class AppState(IntEnum):
    """The client's api_pb2.AppState, by number. docs/states.md has the transitions."""

    EPHEMERAL = 1               # lives as long as its client does
    DETACHED = 2                # `modal run -d`: lives as long as its client does, or work of it is open
    DEPLOYED = 3                # lives until it is stopped
    STOPPING = 4                # its calls and clusters are being ended, its log lines brought in
    STOPPED = 5
    INITIALIZING = 6            # a first deployment, not published yet
    DETACHED_DISCONNECTED = 8   # its client is gone, its work goes on


@dataclass
class Environment:
    KEY: ClassVar = ("name",)

    name: str
    environment_id: str
    is_default: bool = False                    # the one that a client means which names none
    webhook_suffix: str = ""
    created_ms: int = 0


@dataclass
class App:
    """One `modal run`, or one deployment under a name and all its versions. `state` is an AppState."""

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
    created_by: str = ""
    deployed_ms: int = 0                        # of the latest publication; clusters from before it are outdated
    stopped_ms: int = 0
    stopped_by: str = ""                        # who asked for it; empty when it ended by itself
    stop_reason: str = ""                       # a sentence for people
    drained: bool = False                       # stopped, and every log line is in
    client_version: str = ""


class DeploymentType(IntEnum):
    """The client's api_pb2.DeploymentType, by number."""

    STANDARD = 1
    ROLLBACK = 2
    ROLLOVER = 3
    PROMOTION = 4
    STAGED = 5                  # kept, but not live until it is promoted


@dataclass
class AppVersion:
    """One publication of a deployed app, for its history and roll-backs. Never changes once it is written."""

    KEY: ClassVar = ("app_id", "version")

    app_id: str
    version: int                                # from 1
    type: int = DeploymentType.STANDARD
    deployed_ms: int = 0
    deployed_by: str = ""
    client_version: str = ""
    tag: str = ""
    commit_info: bytes = b""                    # the serialized api_pb2.CommitInfo
    tags: dict[str, str] = field(default_factory=dict)
    function_ids: dict[str, str] = field(default_factory=dict)
    class_ids: dict[str, str] = field(default_factory=dict)
    definition_ids: dict[str, str] = field(default_factory=dict)   # function id -> definition id
    functions: list[Function] = field(default_factory=list)        # as they were, to return to them
    source_version: int = 0                     # the version that a roll-back or a promotion brought back


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
