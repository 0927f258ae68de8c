"""phalanx status: what the server knows, for people or as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import click

from phalanx.cli import control_plane
from phalanx.cli.admin import AdminError
from phalanx.cli.control_plane import state_option
from phalanx.cli.screen import show_status
from phalanx.paths import Paths


@click.command()
@state_option
@click.option("--json", "as_json", is_flag=True, help="The server's answer as it is.")
def status(state: Path, as_json: bool) -> None:
    """Control plane, nodes, clusters, what waits and why."""
    running = control_plane.find(Paths(state))
    if running is None:
        raise click.ClickException(control_plane.why_none(Paths(state)))
    try:
        answer = running.status()
    except AdminError as error:
        raise click.ClickException(str(error)) from error
    left = control_plane.what_is_left(Paths(state))
    if left:
        click.echo(f"Warning: {left}\n", err=True)
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        show_status(running, answer)
