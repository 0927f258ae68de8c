"""phalanx node: the fleet's nodes, and what people decide about them."""

from __future__ import annotations

import getpass
import json
import socket
import time
from pathlib import Path
from typing import Any

import click

from phalanx.cli import control_plane
from phalanx.cli.admin import AdminError, call
from phalanx.cli.control_plane import Running, state_option
from phalanx.cli.screen import show_nodes
from phalanx.paths import Paths

POLL_S = 0.5

reason_option = click.option("--reason", metavar="TEXT", default="", help="Why: shown wherever the node, or what waits for it, is.")


@click.group()
def node() -> None:
    """List nodes; take them out of service and back."""


@node.command("list")
@state_option
@click.option("--json", "as_json", is_flag=True, help="The server's answer as it is.")
def list_command(state: Path, as_json: bool) -> None:
    """Every node: its state, who decided it and why, and what runs there."""
    nodes = _ask(_running(state), "Status", {})["nodes"]
    if as_json:
        click.echo(json.dumps(nodes, indent=2))
    else:
        show_nodes(nodes)


@node.command()
@click.argument("name", metavar="NODE")
@reason_option
@state_option
def cordon(name: str, reason: str, state: Path) -> None:
    """No new work on a node; what runs there goes on."""
    answer = _ask(_running(state), "Cordon", {"node": name, "reason": reason, "by": _me()})
    click.echo(f"{name} takes no new work{_still(answer, '; still there: ')}")


@node.command()
@click.argument("name", metavar="NODE")
@click.option("--now", is_flag=True, help="Interrupt what runs there at once; its inputs run again elsewhere.")
@click.option("--wait", is_flag=True, help="Return when nothing is left on it.")
@reason_option
@state_option
def drain(name: str, now: bool, wait: bool, reason: str, state: Path) -> None:
    """Empty a node: nothing new, and what runs there ends.

    Clusters finish the inputs they have open, at most until their functions' time-outs, and take no more; idle ones end at once.
    """
    running = _running(state)
    answer = _ask(running, "Drain", {"node": name, "reason": reason, "now": now, "by": _me()})
    while wait and answer["state"] == "draining":
        time.sleep(POLL_S)
        found = next((n for n in _ask(running, "Status", {})["nodes"] if n["node_id"] == name), None)
        if found is None:
            raise click.ClickException(f"{name} was removed meanwhile")
        answer = {"state": found["by_hand"], "clusters": found["held_by"]}
    click.echo(f"{name} is {answer['state']}{_still(answer, ', until the end of ')}")


@node.command()
@click.argument("name", metavar="NODE")
@state_option
def uncordon(name: str, state: Path) -> None:
    """Let a node take work again."""
    running = _running(state)
    _ask(running, "Uncordon", {"node": name, "by": _me()})
    found = next((n for n in _ask(running, "Status", {})["nodes"] if n["node_id"] == name), {"state": "up"})
    click.echo(f"{name} takes work again" if found["state"] == "up" else f"{name} is {found['state']}, but no longer by hand")


@node.command()
@click.argument("name", metavar="NODE")
@click.option("--dead", is_flag=True, help="The machine is known to be off: what it ran starts elsewhere at once.")
@state_option
def remove(name: str, dead: bool, state: Path) -> None:
    """Forget a node that is drained, or whose agent is away.

    Should its agent bring it again, it is back as it was left: drained, with the reason, until `uncordon`.
    """
    _ask(_running(state), "Remove", {"node": name, "dead": dead})
    click.echo(f"{name} is removed")


def _running(state: Path) -> Running:
    running = control_plane.find(Paths(state))
    if running is None:
        raise click.ClickException(control_plane.why_none(Paths(state)))
    return running


def _ask(running: Running, method: str, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return call(running.listen, running.config, method, request)
    except AdminError as error:
        raise click.ClickException(str(error)) from error


def _me() -> str:
    """Who says so: the door knows one token only."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):     # a user without a name in the password file
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


def _still(answer: dict[str, Any], before: str) -> str:
    return before + " and ".join(answer["clusters"]) if answer["clusters"] else ""
