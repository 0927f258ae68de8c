"""Where the processes of one state folder find each other."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


def default_state() -> Path:
    """The state folder when nobody names one: $PHALANX_STATE, else one below the user's data folder."""
    named = os.environ.get("PHALANX_STATE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "phalanx"


@dataclass(frozen=True)
class Paths:
    """Folders and sockets of one control plane. `state` survives restarts, `run` does not outlive `phalanx down`."""

    state: Path

    @property
    def config(self) -> Path:
        return self.state / "config.json"

    @property
    def database(self) -> Path:
        return self.state / "phalanx.db"

    @property
    def server_lock(self) -> Path:
        """Locked by the server that writes blobs and logs here; says who that is."""
        return self.state / "server.lock"

    @property
    def bugs(self) -> Path:
        """Requests that ended a server by a bug."""
        return self.state / "bugs.json"

    @property
    def backup_lock(self) -> Path:
        """Locked while a backup copies files: what it may still name is not removed meanwhile."""
        return self.state / "backup.lock"

    @property
    def restored(self) -> Path:
        """There until the first start after `phalanx restore` has given up the ranks that ran when the backup was made."""
        return self.state / "restored"

    @property
    def blobs(self) -> Path:
        return self.state / "blobs"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def clients(self) -> Path:
        """Installed client packages, one folder per modal version that this machine has served."""
        return self.state / "clients"

    @property
    def node(self) -> Path:
        """The agent's own folder: shims' spools, layers, root file systems."""
        return self.state / "node"

    @property
    def run(self) -> Path:
        """Sockets live in a short folder of their own: a Unix socket's path ends at 107 bytes."""
        base = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", "/tmp")
        name = hashlib.sha256(str(self.state.resolve()).encode()).hexdigest()[:10]
        return Path(base) / f"phalanx-{name}"

    @property
    def front_socket(self) -> Path:
        """The server fetches the listening sockets here."""
        return self.run / "front.sock"

    @property
    def tasks_socket(self) -> Path:
        """Shims and agents of this machine connect here; the front owns it."""
        return self.run / "tasks.sock"

    @property
    def agents_run(self) -> Path:
        """Shims' control and task sockets."""
        return self.run / "node"

    @property
    def leaving(self) -> Path:
        """Written by an agent that was asked to go: how many milliseconds its containers have to end by themselves."""
        return self.agents_run / "leaving"
