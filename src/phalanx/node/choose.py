"""Which runtime this machine allows: the ladder, tried by doing, with the reason in a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from . import programs
from .launching import Launcher, LaunchFailed

OCI = ("crun", "runc", "runsc")


@dataclass(frozen=True)
class Choice:
    """`prefix` is the command line around the launcher; guarantees say yes, where it is delegated to, or "no: why"."""

    runtime: str
    reason: str
    program: str = ""
    rootless: bool = False
    single_user: bool = False
    prefix: tuple[str, ...] = ()
    guarantees: dict[str, str] = field(default_factory=dict)


class NoRuntime(Exception):
    """What was asked for does not work here; the text says why, and what would."""


async def choose(wanted: str, make_launcher: Callable[[tuple[str, ...]], Launcher], trial: dict[str, object]) -> Choice:
    """The best that works. `wanted` is auto or a runtime's name; `trial` is the launcher's try-out of a container."""
    if wanted == "process":
        return _process("asked for")
    failures: list[str] = []
    for candidate in _candidates(wanted, failures):
        launcher = make_launcher(candidate.prefix)
        try:
            await launcher.ready()
            await launcher.ask(task="try", trial={
                **trial, "runtime": candidate.runtime, "program": candidate.program, "rootless": candidate.rootless,
                "single_user": candidate.single_user})
            return candidate
        except LaunchFailed as failure:
            failures.append(f"{candidate.runtime}: {failure}")
            await launcher.leave()
    why = "; ".join(failures)
    if wanted != "auto":
        raise NoRuntime(f"the runtime {wanted} does not work here ({why}). `--runtime process` needs no privilege")
    return _process(why)


def _candidates(wanted: str, failures: list[str]) -> list[Choice]:
    names = OCI[:2] if wanted == "auto" else (wanted,)
    found = [(name, program) for name in names if (program := programs.find(name))]
    if not found:
        failures.append(f"{' and '.join(names)} not installed")
        return []
    missing = [name for name in ("ip", "nft") if programs.find(name) is None]
    if missing:
        failures.append(f"{' and '.join(missing)} not installed (packages iproute2, nftables)")
        return []
    if os.geteuid() != 0:
        failures.append("not root")
        return []
    return [Choice(name, "root: full isolation", program, guarantees=_FULL) for name, program in found]


def _process(why: str) -> Choice:
    return Choice("process", f"plain processes without isolation ({why})", guarantees=_PROCESS)


_FULL = {"network": "yes", "pids": "yes", "limits": "yes", "images": "default image only", "clean-up": "yes"}
_PROCESS = {
    "network": "no: ranks share the machine's loopback (IPv4 127.x.y.(2+rank), IPv6 ::1)",
    "pids": "no: processes see each other",
    "limits": "no: memory is watched, not limited",
    "images": "no: the machine's own Python",
    "clean-up": "yes",
}
