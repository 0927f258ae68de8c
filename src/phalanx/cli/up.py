"""phalanx up: the control plane and a fleet on this machine."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import click

from phalanx.cli import control_plane
from phalanx.cli.control_plane import Running, load_config, state_option
from phalanx.cli.processes import read_record
from phalanx.cli.replace import replace
from phalanx.cli.screen import show_up
from phalanx.cli.supervisor import record_path
from phalanx.config import Config
from phalanx.paths import Paths

RUNTIMES = ("auto", "crun", "runc", "runsc", "process")


@click.command()
@click.option("--nodes", type=click.IntRange(1, 1024), help="Virtual nodes of the local fleet.")
@click.option("--gpus", type=click.IntRange(0, 16), help="Simulated GPUs a node, where this machine has none; 0 for none.")
@click.option("--gpu", help='The type they say they are: "H100"; "any" takes every type.')
@click.option("--runtime", type=click.Choice(RUNTIMES), help="How containers run; auto takes the best that this machine allows.")
@state_option
@click.option("--listen", metavar="HOST:PORT", help="Where clients connect.")
@click.option("--database", metavar="URL", envvar="PHALANX_DATABASE", show_envvar=True,
              help="postgresql://USER:PASSWORD@HOST/DATABASE; SQLite in the state folder where none is given.")
@click.option("-d", "--detach", is_flag=True, help="Return once it is up, and leave it running.")
def up(nodes: int | None, gpus: int | None, gpu: str | None, runtime: str | None, state: Path, listen: str | None, database: str | None,
       detach: bool) -> None:
    """Start the control plane and a fleet on this machine.

    What is not given stays as the state folder has it from last time. Where it runs already, its server is replaced by this
    installation's, and all that runs goes on: this is how it is upgraded, and how an edited configuration is taken up.
    """
    paths = Paths(state)
    config = with_options(load_config(paths), nodes=nodes, gpus=gpus, gpu=gpu, runtime=runtime, listen=listen, database=database)
    if is_up(paths):
        click.echo(replace(paths, load_config(paths), config))
        return
    _interrupt_on_every_end()
    try:
        running = control_plane.start(paths, config, die_with_us=not detach)
    except click.ClickException as error:
        raise click.ClickException(f"{error.message}\nMore may stand in {paths.state}/*.log") from error
    if detach:
        show_up(running, detach)
        return
    try:
        show_up(running, detach)
        _wait(running)
    except KeyboardInterrupt:
        click.echo("\nstopping: the containers first, then the server")
        control_plane.stop(paths)
        click.echo("stopped")


def is_up(paths: Paths) -> bool:
    supervisor = read_record(record_path(paths)).get("supervisor")
    return supervisor is not None and supervisor.is_alive()


def with_options(config: Config, **options: Any) -> Config:
    for name, value in options.items():
        if value is not None:
            setattr(config, name, value)
    return config


def _interrupt_on_every_end() -> None:
    """Ctrl-C, `kill` and a terminal that is closed mean the same."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)       # a shell's background job starts with it ignored


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _wait(running: Running) -> None:
    supervisor = read_record(record_path(running.paths)).get("supervisor")
    while supervisor is not None and supervisor.is_alive():
        time.sleep(0.5)
    click.echo("stopped from outside (`phalanx down`)")
