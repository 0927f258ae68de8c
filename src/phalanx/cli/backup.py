"""phalanx backup: everything that must not be lost, in one file, while the control plane runs."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import archive
from phalanx.cli.control_plane import load_config, state_option
from phalanx.paths import Paths


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@state_option
def backup(file: Path, state: Path) -> None:
    """Write apps, calls, results, logs and settings into FILE, a tar file, as of one moment. `phalanx up` may run meanwhile.

    The file holds the tokens: only its owner may read it.
    """
    paths = Paths(state)
    if not paths.config.exists():
        raise click.ClickException(f"{state} is no state of phalanx: name one with --state")
    try:
        size = archive.write(paths, load_config(paths), file)
    except archive.ArchiveError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{file} can't be written: {error.strerror}") from error
    click.echo(f"{file}: {size / 2**20:.1f} MiB")
