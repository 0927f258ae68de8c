"""phalanx doctor: what this machine offers, what follows, what is missing."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phalanx.engines import ladder
from phalanx.engines.machine import Machine, look
from phalanx.model.runtimes import GUARANTEES, RUNTIMES


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Everything found, for programs.")
def doctor(as_json: bool) -> None:
    """What this machine offers, which runtime and guarantees follow, and the command for each thing missing."""
    machine = look()
    choice = ladder.choose(machine)
    table = {runtime: ladder.guarantees(machine, runtime) for runtime in RUNTIMES}
    lacking = ladder.missing(machine)
    if as_json:
        found = {"machine": machine.as_json(), "runtime": choice.runtime, "reason": choice.reason, "guarantees": table,
                 "missing": [vars(thing) for thing in lacking]}
        click.echo(json.dumps(found, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print("This machine")
    for name, value in offers(machine):
        console.print(Text(f"  {name:<17} {value}"))
    console.print("\nWhat follows")
    console.print(Text(f"  --runtime auto takes {choice.runtime}: {choice.reason}\n"))
    _print_guarantees(console, table, choice.runtime)
    console.print("\nMissing" if lacking else "\nNothing is missing.")
    for thing in lacking:
        console.print(Text(f"  {thing.what}: {thing.brings}"))
        console.print(Text(f"      {thing.command or 'no command brings it: ask whoever runs this machine'}"))


def offers(machine: Machine) -> list[tuple[str, str]]:
    """Name and finding, one line each."""
    rights = [name for name, has in (("CAP_SYS_ADMIN", machine.sys_admin), ("CAP_NET_ADMIN", machine.net_admin)) if has]
    ids = "with id ranges" if machine.subordinate_ids else "one id only"
    tools = {name: machine.tools[name] for name in ("crun", "runc", "runsc") if name in machine.tools}
    others = {name: version for name, version in machine.tools.items() if name not in tools}
    devices = [name for name, there in (("/dev/fuse", machine.fuse), ("/dev/net/tun", machine.tun)) if there]
    also = f"; also {', '.join(machine.other_pythons)}" if machine.other_pythons else ""
    groups = {"hybrid": "version 1, with version 2 beside it"}.get(machine.cgroups, machine.cgroups.replace("v", "version "))
    gpus = [*(f"{machine.gpus.count(g)} × {g}" for g in dict.fromkeys(machine.gpus))]
    driver = f", driver {machine.gpu_driver or 'not found'}{', CDI' if machine.cdi else ''}"
    return [
        ("system", f"{machine.distribution}, Linux {machine.kernel}"),
        ("root", ("yes, " + (" and ".join(rights) or "without CAP_SYS_ADMIN and CAP_NET_ADMIN")) if machine.root else "no"),
        ("namespaces", _works(machine.namespaces_refused)),
        ("user namespaces", _works(machine.user_namespace_refused, ids)),
        ("/proc in them", _works(machine.user_namespace_proc_refused)),
        ("cgroups", f"{groups}, groups with limits: {_works(machine.cgroup_refused)}"),
        ("overlay", _works(machine.overlay_refused)),
        ("bridge and veth", _works(machine.bridge_refused)),
        ("nftables", _works(machine.nftables_refused)),
        ("runtimes", ", ".join(f"{name} {version}" for name, version in tools.items()) or "none"),
        ("tools", ", ".join(f"{name} {version}" for name, version in others.items()) or "none"),
        ("devices", ", ".join(devices) or "neither /dev/fuse nor /dev/net/tun opens"),
        ("GPUs", ", ".join(gpus) + driver if gpus else "none: the local fleet simulates them"),
        ("RDMA devices", ", ".join(machine.rdma_devices) or "none"),
        ("Python", f"{machine.python} at {machine.python_prefix}{also}"),
    ]


def _works(refused: str, note: str = "") -> str:
    if refused:
        return f"no: {refused}"
    return f"yes, {note}" if note else "yes"


def _print_guarantees(console: Console, guarantees: dict[str, dict[str, str]], chosen: str) -> None:
    """Short words in the table; what stands behind them below, once."""
    table = Table(box=None, padding=(0, 3, 0, 2), pad_edge=False)
    table.add_column("")
    for runtime in guarantees:
        table.add_column(f"{runtime} (taken)" if runtime == chosen else runtime)
    for name in GUARANTEES:
        table.add_row(name, *(values[name].partition(":")[0] for values in guarantees.values()))
    console.print(table)
    for runtime, values in guarantees.items():
        notes: dict[str, list[str]] = {}
        for name, value in values.items():
            notes.setdefault(value.partition(": ")[2], []).append(name)
        for note, names in notes.items():
            if note:
                subject = runtime if len(names) == len(values) else f"{runtime}, {', '.join(names)}"
                console.print(Text(f"  {subject}: {note}"))
