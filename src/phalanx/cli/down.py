"""phalanx down: stop what `phalanx up` started."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import control_plane
from phalanx.cli.control_plane import state_option
from phalanx.paths import Paths


@click.command()
@state_option
def down(state: Path) -> None:
    """Stop the containers, then the control plane. Calls, results and logs stay in the state folder."""
    stopped = control_plane.stop(Paths(state))
    click.echo(f"stopped {', '.join(stopped)}" if stopped else f"nothing is up with state {state}")
