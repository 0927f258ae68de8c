"""What follows from what the machine offers: which runtime `auto` takes and why, what each guarantees, what would bring more."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from phalanx.engines.machine import Machine
from phalanx.model.runtimes import AUTO, GUARANTEES, PROCESS, ROOT, ROOTLESS

PACKAGES = {    # tool or feature: package by package manager, where its name differs from the tool's
    "ip": {"apt-get": "iproute2", "dnf": "iproute", "apk": "iproute2", "pacman": "iproute2", "zypper": "iproute2"},
    "nft": {"apt-get": "nftables", "dnf": "nftables", "apk": "nftables", "pacman": "nftables", "zypper": "nftables"},
    "newuidmap": {"apt-get": "uidmap", "dnf": "shadow-utils", "apk": "shadow-uidmap", "pacman": "shadow", "zypper": "shadow"},
}
INSTALL = {"apt-get": "apt-get install -y", "dnf": "dnf install -y", "apk": "apk add", "pacman": "pacman -S --noconfirm",
           "zypper": "zypper install -y"}


@dataclass(frozen=True)
class Choice:
    """A runtime, and the sentence that says why this one."""

    runtime: str
    reason: str


@dataclass(frozen=True)
class Missing:
    """Something that is not there, what it would bring, and the command that brings it ("" where only the machine's owner can)."""

    what: str
    brings: str
    command: str


def choose(machine: Machine) -> Choice:
    """What `--runtime auto` takes."""
    lacking = why_no_root_containers(machine)
    for runtime in AUTO:
        if not lacking and runtime in machine.tools:
            return Choice(runtime, f"root, and {runtime} {machine.tools[runtime]} is installed: full isolation")
    if machine.root:
        return Choice("process", f"{lacking or 'neither crun nor runc is installed'}: plain processes, no isolation")
    rootless = why_no_rootless(machine)
    if not rootless:
        return Choice("crun", f"not root: crun {machine.tools['crun']} in one user namespace for the fleet; memory is watched, not limited")
    return Choice("process", f"not root, and {rootless}: plain processes, no isolation")


def why_no_root_containers(machine: Machine) -> str:
    """"" if containers as root work here."""
    if not machine.root:
        return "not root"
    if machine.namespaces_refused:
        return f"root without the right to make namespaces ({machine.namespaces_refused})"
    for what, refused in (("overlay", machine.overlay_refused), ("bridge", machine.bridge_refused), ("nftables", machine.nftables_refused)):
        if refused:
            return f"no {what} ({refused})"
    return ""


def why_no_rootless(machine: Machine) -> str:
    """"" if crun in one user namespace would work here."""
    if machine.user_namespace_refused:
        said = ", ".join(f"{name.replace('/', '.')} = {value}" for name, value in machine.userns_sysctls.items())
        return f"user namespaces are refused ({machine.user_namespace_refused}{'; ' + said if said else ''})"
    if "crun" not in machine.tools:
        return "crun is not installed"
    for what, refused in (("overlay", machine.overlay_refused), ("bridge", machine.bridge_refused), ("nftables", machine.nftables_refused)):
        if refused:
            return f"no {what} in a user namespace ({refused})"
    return ""


def guarantees(machine: Machine, runtime: str) -> dict[str, str]:
    """For each guarantee "yes", "where delegated: …" or "no: …", as a container of this runtime would have it on this machine."""
    if runtime == "process":
        return dict(PROCESS)
    unavailable = why_not(machine, runtime)
    if unavailable:
        return dict.fromkeys(GUARANTEES, f"no: {unavailable}")
    if not machine.root:
        way_out = "by slirp4netns" if "slirp4netns" in machine.tools else "no way out to the internet"
        return {**ROOTLESS, "network": f"{ROOTLESS['network']}; {way_out}"}
    limits = ROOT["limits"] if not machine.cgroup_refused else f"where delegated: not here ({machine.cgroup_refused})"
    return {**ROOT, "limits": limits}


def why_not(machine: Machine, runtime: str) -> str:
    """"" if this runtime can start containers here."""
    if runtime == "process":
        return ""
    if runtime not in machine.tools:
        return f"{runtime} is not installed"
    lacking = why_no_root_containers(machine)
    if not lacking:
        return ""
    if machine.root or runtime != "crun":
        return lacking
    return why_no_rootless(machine)


def missing(machine: Machine) -> list[Missing]:
    """In the order of what helps most."""
    found = []
    if "crun" not in machine.tools and "runc" not in machine.tools:
        found.append(Missing("crun", "containers with a file system, a network and limits of their own", install(machine, "crun")))
    if "ip" not in machine.tools:
        found.append(Missing("iproute2", "private networks between containers", install(machine, "ip")))
    if "nft" not in machine.tools:
        found.append(Missing("nftables", "separate workspaces, and the internet for containers", install(machine, "nft")))
    if not machine.root and machine.user_namespace_refused:
        found.append(Missing("user namespaces", "containers without being root", _userns_command(machine)))
    if not machine.root and not machine.subordinate_ids:
        ids = "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER"
        command = f"{install(machine, 'newuidmap')} && sudo {ids}" if "newuidmap" not in machine.tools else f"sudo {ids}"
        found.append(Missing("subordinate ids", "containers without root that have users of their own (chown, su)", command))
    if not machine.root and "slirp4netns" not in machine.tools:
        found.append(Missing("slirp4netns", "the internet for containers without root", install(machine, "slirp4netns")))
    if machine.gpus and not machine.gpu_driver:
        found.append(Missing("the NVIDIA driver's files", "GPUs inside containers: the device nodes alone are not enough", ""))
    return found


def install(machine: Machine, tool: str) -> str:
    manager = next((name for name in INSTALL if shutil.which(name)), None)
    if manager is None:
        return f"install {tool} with this machine's package manager"
    package = PACKAGES.get(tool, {}).get(manager, tool)
    return f"{'' if machine.root else 'sudo '}{INSTALL[manager]} {package}"


def _userns_command(machine: Machine) -> str:
    if machine.userns_sysctls.get("kernel/unprivileged_userns_clone") == "0":
        return "sudo sysctl -w kernel.unprivileged_userns_clone=1"
    if machine.userns_sysctls.get("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if machine.userns_sysctls.get("user/max_user_namespaces") == "0":
        return "sudo sysctl -w user.max_user_namespaces=15000"
    return ""       # seccomp of an outer container: only its owner can
