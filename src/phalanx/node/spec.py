"""What a shim is told about its container: one JSON file in the container's folder, stdlib only.

The file outlives shim and agent, so a later agent can clean up with it. VERSION rises when a field changes its meaning;
an agent that finds another version only uses `control_socket` and `folder`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from typing import Any

VERSION = 1


@dataclass
class Mount:
    """A host path shown in the container."""

    source: str
    target: str
    writable: bool = False
    overlay: list[str] = field(default_factory=list)   # lower folders laid over `source`, topmost first


@dataclass
class Network:
    """The container's own network namespace, on the workspace's bridge."""

    bridge: str
    port: str                  # the host's end of the veth pair
    mac: str
    ipv4: str                  # "10.64.0.2/20"
    ipv6: str                  # "fdaa:…::2/64"
    gateway: str = ""          # empty: no way out of the workspace
    workspace: str = ""        # "fdaa:…::/48", reached over the bridge


@dataclass
class Limits:
    """cgroup limits, and what hangs on them. 0 is no limit."""

    memory_bytes: int = 0
    cpu_quota_us: int = 0      # for a period of 100 ms
    cpu_shares: int = 0
    pids: int = 0
    shm_bytes: int = 0


@dataclass
class Spec:
    assignment: int
    rank: int
    task_id: str
    task_secret: str
    folder: str                # everything of this container that is a file
    control_socket: str        # the agent talks to the shim here
    api_folder: str            # holds api.sock, the container's way to the control plane
    tasks_socket: str          # where api.sock leads to
    runtime: str               # crun, runc, runsc, process
    program: str = ""          # the runtime's binary
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    working_folder: str = "/root"
    hostname: str = ""
    layers: list[str] = field(default_factory=list)    # read-only folders, topmost first
    mounts: list[Mount] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)   # host device nodes handed over
    cards: list[int] = field(default_factory=list)     # minors of the GPUs that are its alone
    network: Network | None = None
    limits: Limits = field(default_factory=Limits)
    cgroup: str = ""           # one name below every hierarchy's root
    rootless: bool = False
    single_user: bool = False  # a user namespace with one uid only
    node_id: str = ""
    http_address: str = ""     # "127.127.0.1:61899": leads where the API socket leads, for clients that know TCP only
    ipv4: str = ""
    ipv6: str = ""
    zygote: str = ""           # socket of the zygote that may fork this container's main process; empty: exec
    serves: str = ""           # not empty: this is a zygote, which listens there
    spool_limit_bytes: int = 1 << 30
    boot_id: str = ""
    size: int = 0              # ranks of its assignment; 0: an older agent did not write it down
    grace_ms: int = 0          # between interrupt and SIGKILL when its lease is over
    version: int = VERSION

    @property
    def name(self) -> str:
        return f"{self.assignment}-{self.rank}"

    @property
    def api_socket(self) -> str:
        return os.path.join(self.api_folder, "api.sock")

    @property
    def spool(self) -> str:
        return os.path.join(self.folder, "spool")

    def save(self) -> None:
        """Write it whole or not at all; the secret is for the owner's eyes."""
        write_whole(os.path.join(self.folder, "spec.json"), json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: str) -> Spec:
        """Read the file of a container's folder; fields of a newer version are passed over."""
        with open(os.path.join(folder, "spec.json")) as file:
            values: dict[str, Any] = json.load(file)
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in values.items() if name in known}
        values["mounts"] = [Mount(**mount) for mount in values["mounts"]]
        values["limits"] = Limits(**values["limits"])
        if values["network"]:
            values["network"] = Network(**values["network"])
        return cls(**values)


@dataclass
class Exit:
    """How a container ended: exit.json in its folder, written after the last byte of its output."""

    code: int = 0
    signal: int = 0
    oom_killed: bool = False
    memory_limit_bytes: int = 0
    memory_peak_bytes: int = 0
    log_end: int = 0
    boottime_ms: int = 0
    sentence: str = ""
    never_started: bool = False
    unseen: bool = False            # the shim was gone: nobody saw the end
    fenced: str = ""                # it was stopped for its lease was over, and how that came
    unkillable: bool = False        # SIGKILL did not end it: it may run still
    stopped: bool | None = None     # it had been told to stop before it ended. None: written by a shim that does not say

    def save(self, folder: str) -> None:
        write_whole(os.path.join(folder, "exit.json"), json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: str) -> Exit | None:
        """None when the container has not ended, or nobody was left to see it."""
        try:
            with open(os.path.join(folder, "exit.json")) as file:
                return cls(**json.load(file))
        except FileNotFoundError:
            return None


def write_whole(path: str, text: str) -> None:
    """Replace a file so that a reader sees the old text or the new one; mode 0600."""
    draft = f"{path}.new"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
