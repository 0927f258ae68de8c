"""phalanx explain: why a call or a function waits, its place, what is ahead, and what would start it now."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import control_plane
from phalanx.cli.admin import AdminError, call
from phalanx.cli.control_plane import state_option
from phalanx.paths import Paths


@click.command()
@click.argument("of", metavar="CALL|CLUSTER|FUNCTION")
@state_option
def explain(of: str, state: Path) -> None:
    """Why a call (fc-…), a cluster (cu-…) or a function (fu-… or its name) waits or ended."""
    running = control_plane.find(Paths(state))
    if running is None:
        raise click.ClickException(f"nothing is up with state {state}: start it with `phalanx up`, or name another with --state")
    try:
        click.echo("\n".join(call(running.listen, running.config, "Explain", {"of": of})["lines"]))
    except AdminError as error:
        raise click.ClickException(str(error)) from error
