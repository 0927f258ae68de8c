"""phalanx restore: a backup becomes a state folder."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import archive
from phalanx.cli.control_plane import state_option
from phalanx.cli.processes import read_record
from phalanx.cli.supervisor import record_path
from phalanx.paths import Paths


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--database", metavar="URL", default="", help="An empty PostgreSQL database, for a backup of one.")
@state_option
def restore(file: Path, state: Path, database: str) -> None:
    """Unpack a backup into a new state folder; start it with `phalanx up`.

    Calls that were done are there with their results; those that waited or ran begin again. Stop the control plane that the backup
    was made of first, if it still runs: two would run the same calls.
    """
    running = [name for name, process in read_record(record_path(Paths(state))).items() if process.is_alive()]
    if running:
        raise click.ClickException(f"{state} is in use ({', '.join(running)} run): `phalanx down` stops them; restore into a new folder")
    try:
        about = archive.read(file, state, database)
    except archive.ArchiveError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or state}: {error.strerror}") from error
    click.echo(f"restored {state} as of {about['made']}; start it with: phalanx up --state {state}")
