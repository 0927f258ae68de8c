"""phalanx logs: what the ranks of a cluster wrote, one rank or all of them told apart. The stock client has no word for ranks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from grpclib.exceptions import ProtocolError, StreamTerminatedError

from phalanx.cli import control_plane
from phalanx.cli.admin import AdminError, call
from phalanx.cli.control_plane import state_option
from phalanx.config import Config
from phalanx.paths import Paths

WAIT_S = 30                 # one question, while following
PATIENCE_S = 60             # a server that is away for longer ends the command


@click.command()
@click.argument("of", metavar="CLUSTER|CONTAINER|APP")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank.")
@click.option("-f", "--follow", is_flag=True, help="Go on until no more can come.")
@click.option("-n", "--tail", type=click.IntRange(min=1), help="Begin with the last N lines.")
@click.option("--json", "as_json", is_flag=True, help="One object a line, with time, rank, container, call and stream.")
@state_option
def logs(of: str, rank: int | None, follow: bool, tail: int | None, as_json: bool, state: Path) -> None:
    """What a cluster (cu-…), a container (ta-…) or an app (ap-… or its name) wrote. Ranks are told apart where several are shown."""
    listen, config = _where(Paths(state))
    question = {"of": of, "rank": rank, "tail": tail}
    screen = _Screen(named=not of.startswith("ta-") and rank is None, clusters=not of.startswith("cu-"))
    try:
        for line in _lines(listen, config, question, follow):
            if as_json:
                click.echo(json.dumps(line))
            else:
                screen.show(line)
    except AdminError as error:
        raise click.ClickException(str(error)) from error
    finally:
        screen.close()


def _where(paths: Paths) -> tuple[str, Config]:
    """The control plane of this state; when none is up there, the one that the modal client is pointed at."""
    running = control_plane.find(paths)
    if running is not None:
        return running.listen, running.config
    from modal.config import config as client

    server = urlsplit(client["server_url"])
    if server.scheme == "http" and server.hostname and client["token_id"]:
        host = f"[{server.hostname}]" if ":" in server.hostname else server.hostname
        return f"{host}:{server.port or 80}", Config(token_id=client["token_id"], token_secret=client["token_secret"])
    raise click.ClickException(f"nothing is up with state {paths.state}: start it with `phalanx up`, or name another with --state")


def _lines(listen: str, config: Config, question: dict[str, Any], follow: bool) -> Iterator[dict[str, Any]]:
    after, heard = "", time.monotonic()
    while True:
        wait_s = WAIT_S if follow and after else 0
        try:
            answer = call(listen, config, "Logs", question | {"after": after, "wait_s": wait_s}, timeout_s=wait_s + 30)
        except AdminError as error:
            away = isinstance(error.__cause__, OSError | TimeoutError | StreamTerminatedError | ProtocolError)
            if not (follow and after and away) or time.monotonic() - heard > PATIENCE_S:
                raise
            time.sleep(0.5)
            continue
        heard = time.monotonic()
        yield from answer["lines"]
        after = answer["next"]
        if answer["done"] or (answer["caught_up"] and not follow):
            return


class _Screen:
    """Writes lines with who wrote them in front, and never mixes two ranks' lines, even where one is not whole yet."""

    def __init__(self, named: bool, clusters: bool) -> None:
        self._named = named
        self._clusters = clusters
        self._open: tuple[Any, ...] | None = None      # who wrote what stands on the screen's last line, if it has no end

    def show(self, line: dict[str, Any]) -> None:
        who = (line["container"], line["rank"], line["stream"])
        text = line["text"]
        if self._open is not None and self._open != who:
            sys.stdout.write("\n")
            self._open = None
        sys.stdout.write(text if self._open is not None or not self._named else f"{self._name(line)} | {text}")
        self._open = None if text.endswith("\n") else who
        if text.endswith("\r"):     # the next one begins at the left again, with its name
            sys.stdout.flush()
            self._open = None
        if self._open is not None:
            sys.stdout.flush()

    def close(self) -> None:
        if self._open is not None:
            sys.stdout.write("\n")
        sys.stdout.flush()

    def _name(self, line: dict[str, Any]) -> str:
        if line["rank"] is None:
            return "phalanx" if line["stream"] == "system" else line["container"]
        return f"{line['cluster']} rank {line['rank']}" if self._clusters else f"rank {line['rank']}"
