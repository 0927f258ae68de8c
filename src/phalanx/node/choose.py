"""Which runtime this machine allows: the ladder, tried by doing, with the reason in a sentence."""

from __future__ import annotations

import os
import pwd
import resource
from collections.abc import Callable
from dataclasses import dataclass, field

from phalanx.model.runtimes import AUTO, PROCESS, ROOT, ROOTLESS

from . import programs
from .launching import Launcher, LaunchFailed
from .oci_config import OPEN_FILES, may_raise_limits


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
        raise NoRuntime(f"the runtime {wanted} does not work here ({why}). `phalanx doctor` shows what brings it; "
                        "`--runtime process` needs no privilege")
    return _process(why)


def _candidates(wanted: str, failures: list[str]) -> list[Choice]:
    """From the most isolation to the least. What is missing for one goes into `failures`."""
    names = AUTO if wanted == "auto" else (wanted,)
    found = [(name, program) for name in names if (program := programs.find(name))]
    if not found:
        failures.append(f"{' and '.join(names)} not installed")
        return []
    missing = [name for name in ("ip", "nft") if programs.find(name) is None]
    if missing:
        failures.append(f"{' and '.join(missing)} not installed (packages iproute2, nftables)")
        return []
    candidates = []
    if os.geteuid() == 0:
        candidates = [Choice(name, "root: full isolation", program, guarantees=_full()) for name, program in found]
    else:
        failures.append("not root")
    return candidates + _rootless(dict(found), failures)


def _rootless(found: dict[str, str], failures: list[str]) -> list[Choice]:
    """crun in one user namespace that holds the whole fleet; first with the user's subordinate ids, where it has any."""
    if "crun" not in found:
        return []
    if programs.find("unshare") is None:
        failures.append("unshare not installed (package util-linux)")
        return []
    candidates = []
    if _has_subordinate_ids():
        candidates.append(Choice(
            "crun", "a user namespace with the user's subordinate ids", found["crun"], rootless=True,
            prefix=("unshare", "-Urmn", "--map-root-user", "--map-auto"), guarantees=dict(ROOTLESS)))
    candidates.append(Choice(
        "crun", "a user namespace with one user id (for more: install uidmap and add lines to /etc/subuid and /etc/subgid)", found["crun"],
        rootless=True, single_user=True, prefix=("unshare", "-Urmn", "--map-root-user"), guarantees=dict(ROOTLESS)))
    return candidates


def _has_subordinate_ids() -> bool:
    if programs.find("newuidmap") is None or programs.find("newgidmap") is None:
        return False
    try:
        names = (pwd.getpwuid(os.geteuid()).pw_name, str(os.geteuid()))
    except KeyError:
        names = (str(os.geteuid()),)
    try:
        with open("/etc/subuid") as users, open("/etc/subgid") as groups:
            return all(any(line.startswith(tuple(f"{name}:" for name in names)) for line in file) for file in (users, groups))
    except OSError:
        return False


def _process(why: str) -> Choice:
    return Choice("process", f"plain processes without isolation ({why})", guarantees=dict(PROCESS))


def _full() -> dict[str, str]:
    return {**ROOT, "limits": ROOT["limits"] + _low_hard_limits()}


def _low_hard_limits() -> str:
    """What containers miss of memlock unlimited and nofile 1048576, where we may not raise this machine's hard limits."""
    if may_raise_limits():
        return ""
    files, locked = resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    low = []
    if files != resource.RLIM_INFINITY and files < OPEN_FILES:
        low.append(f"open files {files}")
    if locked != resource.RLIM_INFINITY:
        low.append(f"locked memory {locked // 1024} KiB")
    return f", but this machine's hard limits stay: {', '.join(low)} (no CAP_SYS_RESOURCE)" if low else ""
