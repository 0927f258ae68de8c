"""The `phalanx` command. Each command's module is imported when it is used, so that `phalanx --help` stays fast."""

from __future__ import annotations

import importlib

import click

from phalanx import __version__

COMMANDS = {
    "up": "start the control plane and a fleet on this machine",
    "down": "stop them and everything they run",
    "status": "control plane, nodes, clusters, what waits and why",
    "logs": "what a cluster, one of its ranks, or an app wrote",
    "run": "run a program as `modal run` does, on a control plane of its own if none is up",
    "login": "point the modal client at the control plane, in its own configuration",
    "doctor": "what this machine offers, what follows, what is missing",
}
"""Name to what it does. The command `x` is `phalanx.cli.x:x`."""


class Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return getattr(importlib.import_module(f"phalanx.cli.{name}"), name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="phalanx")
def main() -> None:
    """Gang-scheduled clusters of GPU containers on your own machines, for the stock modal client."""


if __name__ == "__main__":
    main()
