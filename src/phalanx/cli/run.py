"""phalanx run: `modal run` with a control plane."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from phalanx.cli import control_plane
from phalanx.cli.control_plane import Running, state_option
from phalanx.cli.screen import fleet, isolation
from phalanx.cli.supervisor import PR_SET_PDEATHSIG
from phalanx.cli.up import RUNTIMES, with_options
from phalanx.config import Config
from phalanx.paths import Paths

DETACHED = ("-d", "--detach")
WITH_VALUE = ("-w", "--write-result", "-n", "--name", "-e", "--env")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@state_option
@click.option("--own", is_flag=True, help="A control plane for this run only, even if one is up.")
@click.option("--nodes", type=click.IntRange(1, 1024), help="Of the control plane for this run: virtual nodes.")
@click.option("--gpus", type=click.IntRange(0, 16), help="Of the control plane for this run: simulated GPUs a node.")
@click.option("--gpu", help="Of the control plane for this run: GPU type.")
@click.option("--runtime", type=click.Choice(RUNTIMES), help="Of the control plane for this run: how containers run.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="FILE[::ENTRYPOINT] [ARGS]...")
def run(state: Path, own: bool, nodes: int | None, gpus: int | None, gpu: str | None, runtime: str | None,
        arguments: tuple[str, ...]) -> None:
    """Run a program as `modal run` does, flags included (-d, -q, -w FILE, -m).

    It uses the control plane that is up, or one that lives just as long as this command. Its exit code is the program's.
    """
    options = {"nodes": nodes, "gpus": gpus, "gpu": gpu, "runtime": runtime}
    wants_own = own or any(value is not None for value in options.values())
    running = None if wants_own else control_plane.find(Paths(state))
    if running is not None:
        sys.exit(_modal_run(running, arguments))
    if _wants_detached(arguments):
        raise click.ClickException("a detached app outlives this command and needs a control plane that does: `phalanx up -d` first")
    with _own_control_plane(with_options(Config(), **options)) as running:
        code = _modal_run(running, arguments)
    sys.exit(code)


@contextmanager
def _own_control_plane(config: Config) -> Iterator[Running]:
    """In a temporary state folder (below $PHALANX_RUN_FOLDER, if set), at a free port; nothing of it remains."""
    folder = Path(tempfile.mkdtemp(prefix="phalanx-run-", dir=os.environ.get("PHALANX_RUN_FOLDER")))
    paths = Paths(folder)
    config.listen = f"127.0.0.1:{_free_port()}"
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        running = control_plane.start(paths, config.with_secrets(), die_with_us=True, remove_state=True)
        nodes = running.nodes()
        said = [*(f"fleet: {sentence}" for sentence in fleet(nodes)), *(f"{name}: {value}" for name, value in isolation(nodes))]
        click.echo("\n".join(f"phalanx: {sentence}" for sentence in said), err=True)
        yield running
    finally:
        control_plane.stop(paths)
        signal.signal(signal.SIGTERM, previous)
        shutil.rmtree(folder, ignore_errors=True)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _wants_detached(arguments: tuple[str, ...]) -> bool:
    """Whether -d stands among the client's options, before the program's name."""
    rest = iter(arguments)
    for argument in rest:
        if argument in DETACHED:
            return True
        if argument in WITH_VALUE:
            next(rest, None)
        elif not argument.startswith("-"):
            return False
    return False


def _modal_run(running: Running, arguments: tuple[str, ...]) -> int:
    """The client gets Ctrl-C from the terminal itself and needs time to say goodbye: wait for it, whatever comes."""
    environment = {**os.environ, **running.client_environment()}
    client = subprocess.Popen([sys.executable, "-m", "modal", "run", *arguments], env=environment, preexec_fn=_before_it_starts)
    previous = signal.signal(signal.SIGTERM, lambda signum, frame: client.send_signal(signal.SIGINT))
    try:
        while True:
            try:
                code = client.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:
                continue
    finally:
        signal.signal(signal.SIGTERM, previous)


def _before_it_starts() -> None:
    """In the client: end it when we are killed, as the control plane ends then too. A job that a script's shell started with & has SIGINT
    ignored, and what it starts inherits that: the client would never hear what SIGTERM to us becomes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


