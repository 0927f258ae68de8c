"""The `phalanx` command. Each command's module is imported when it is used, so that `phalanx --help` stays fast."""

from __future__ import annotations

import importlib

import click

from phalanx import __version__

COMMANDS = {
    "up": "start the control plane and a fleet on this machine",
    "down": "stop them and everything they run",
    "status": "control plane, nodes, clusters, what waits and why",
    "node": "list nodes; cordon, drain, uncordon, remove one",
    "logs": "what a cluster, one of its ranks, or an app wrote",
    "explain": "why a call, a cluster or a function waits, and what would start it now",
    "run": "run a program as `modal run` does, on a control plane of its own if none is up",
    "backup": "everything that must not be lost, into one file, while the control plane runs",
    "restore": "make a state folder of a backup",
    "login": "point the modal client at the control plane, in its own configuration",
    "doctor": "what this machine offers, what follows, what is missing",
    "plan": "save the planner's last decisions, or decide recorded ones again",
    "simulate": "run a trace of gangs through the planner, in virtual time",
}
"""Name to what it does. The command `x` is `phalanx.cli.x:x`, or `x_command` where `x` is the planner's own word."""


class Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"phalanx.cli.{name}")
        return getattr(module, f"{name}_command", None) or getattr(module, name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="phalanx")
def main() -> None:
    """Gang-scheduled clusters of GPU containers on your own machines, for the stock modal client."""


if __name__ == "__main__":
    main()
