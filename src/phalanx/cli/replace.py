"""`phalanx up` over a running one: another server takes its place, everything else goes on.

The server alone is replaced: the front holds its sockets and keeps clients waiting, agent and shims hold their containers and what
those wrote (design rule 7). What concerns the fleet or the sockets can't change under them, and is refused before anything is done.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import click

from phalanx.cli.admin import AdminError, call
from phalanx.cli.processes import Process, read_record
from phalanx.cli.supervisor import START_S, STOP_S, last_words, python_path, ready_path, record_path
from phalanx.config import Config
from phalanx.paths import Paths

NEEDS_DOWN = ("nodes", "gpus", "gpu", "runtime", "listen", "database")


def replace(paths: Paths, before: Config, wanted: Config) -> str:
    """Replace the server of a running control plane. Returns what was done; raises ClickException, and then nothing was, or says what."""
    changed = [name for name in NEEDS_DOWN if _value(before, name) != _value(wanted, name)]
    if changed:
        changes = [f"{name} from {_value(before, name)} to {_value(wanted, name)}" for name in changed]
        raise click.ClickException(
            f"phalanx is up with state {paths.state}, and these can't change while it runs: {', '.join(changes)}. Nothing was changed: "
            "`phalanx down` first, which stops what runs, or leave the options out to replace the server only")
    record = read_record(record_path(paths))
    old, was = record.get("server"), _about(wanted)
    python_path(paths).write_text(sys.executable)      # what ends from here on comes back as this very installation
    if old is not None:
        old.signal(signal.SIGTERM)
    new = _next_server(paths, old)
    now = _about(wanted)
    clusters = now.get("clusters") or []
    went_on = [f"{name} (process {record[name].pid})" for name in ("front", "agent") if name in record and record[name].is_alive()]
    containers = sum(len(cluster.get("containers") or []) for cluster in clusters)
    return (f"replaced the server: {_name(old, was)}, now {_name(new, now)}\n"
            f"went on: {', '.join(went_on)}, {_count(len(clusters), 'cluster')} with {_count(containers, 'container')}")


def _next_server(paths: Paths, old: Process | None) -> Process:
    """The server that serves, once it is another one."""
    deadline = time.monotonic() + START_S + STOP_S["server"]
    seen: set[int] = set()
    while time.monotonic() < deadline:
        server = read_record(record_path(paths)).get("server")
        if server is not None and server != old:
            if _ready_pid(paths) == server.pid:
                return server
            seen.add(server.pid)
            if len(seen) > 2:       # it was started, and started again
                raise click.ClickException("the old server was stopped, and the new one does not start; clients wait, and so does the "
                                           f"supervisor before it tries again. Its last words:\n{last_words(paths, 'server')}")
        time.sleep(0.05)
    raise click.ClickException(f"the new server was not ready in time: see {paths.state / 'server.log'}")


def _ready_pid(paths: Paths) -> int | None:
    try:
        return int(json.loads(ready_path(paths).read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None


def _about(config: Config) -> dict[str, Any]:
    try:
        return call(config.listen, config, "Status")
    except AdminError:      # a server that is away may be replaced too
        return {}


def _name(process: Process | None, about: dict[str, Any]) -> str:
    version = (about.get("server") or {}).get("version")
    return (f"process {process.pid}" if process else "none") + (f" (phalanx {version})" if version else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _value(config: Config, name: str) -> object:
    value = getattr(config, name)
    return "SQLite" if name == "database" and not value else value
