"""What this machine offers. Pure looking and trying; nothing is changed. `phalanx doctor` prints it, the agent may decide by it."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from phalanx.engines import attempts

CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"       # an ordinary user's PATH lacks it
TOOLS = ("crun", "runc", "runsc", "nft", "ip", "newuidmap", "fuse-overlayfs", "pasta", "slirp4netns", "buildah", "skopeo")
EXPLAINING_SYSCTLS = ("kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns", "user/max_user_namespaces")


@dataclass
class Machine:
    """Facts. In the fields `…_refused`, "" means that it works, anything else is why it doesn't."""

    kernel: str = ""
    distribution: str = ""
    root: bool = False
    sys_admin: bool = False
    net_admin: bool = False
    namespaces_refused: str = ""        # a full container's namespaces as real root
    user_namespace_refused: str = ""
    user_namespace_proc_refused: str = ""
    userns_sysctls: dict[str, str] = field(default_factory=dict)
    subordinate_ids: bool = False       # ranges in /etc/subuid and /etc/subgid, and newuidmap to use them
    overlay_refused: str = ""
    bridge_refused: str = ""
    nftables_refused: str = ""
    cgroups: str = ""                   # v2, hybrid, v1, none
    cgroup_folder: str = ""             # v2: where we are
    cgroup_refused: str = ""            # may we make groups with limits?
    tools: dict[str, str] = field(default_factory=dict)     # name to version, of those found
    fuse: bool = False                  # /dev/fuse opens
    tun: bool = False                   # /dev/net/tun opens
    gpus: list[str] = field(default_factory=list)
    gpu_driver: str = ""
    cdi: bool = False
    rdma_devices: list[str] = field(default_factory=list)
    python: str = ""
    python_prefix: str = ""
    other_pythons: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def look() -> Machine:
    """Takes about a second. Forks children for what is tried by doing."""
    machine = Machine(kernel=platform.release(), distribution=_distribution(), root=os.geteuid() == 0)
    machine.sys_admin, machine.net_admin = (_has_capability(c) for c in (CAP_SYS_ADMIN, CAP_NET_ADMIN))
    machine.tools = {name: version for name in TOOLS if (version := _version(name)) is not None}
    _look_at_namespaces(machine)
    _look_at_cgroups(machine)
    _look_at_devices(machine)
    _look_at_pythons(machine)
    return machine


def find_tool(name: str) -> str | None:
    """Its path, also where only root's PATH finds it."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}")


def _look_at_namespaces(machine: Machine) -> None:
    real_root = machine.root and machine.sys_admin
    machine.namespaces_refused = attempts.root_namespaces() or "" if real_root else "needs root with CAP_SYS_ADMIN"
    machine.user_namespace_refused = attempts.user_namespace() or ""
    machine.user_namespace_proc_refused = machine.user_namespace_refused or attempts.user_namespace_with_proc() or ""
    machine.userns_sysctls = {name: value for name in EXPLAINING_SYSCTLS if (value := _read(f"/proc/sys/{name}"))}
    machine.subordinate_ids = "newuidmap" in machine.tools and all(_has_range(f) for f in ("/etc/subuid", "/etc/subgid"))
    as_root = real_root and not machine.namespaces_refused
    if not as_root and machine.user_namespace_refused:
        machine.overlay_refused = machine.bridge_refused = machine.nftables_refused = "needs root or a user namespace"
        return
    machine.overlay_refused = attempts.overlay(as_root) or ""
    bridge, nft = attempts.bridge_and_nft(as_root)
    machine.bridge_refused = "iproute2 is not installed" if "ip" not in machine.tools else bridge or ""
    machine.nftables_refused = "nft is not installed" if "nft" not in machine.tools else nft or ""


def _look_at_cgroups(machine: Machine) -> None:
    kind = _file_system("/sys/fs/cgroup")
    if kind == "cgroup2":
        machine.cgroups = "v2"
        own = next((line[3:] for line in (_read("/proc/self/cgroup") or "").splitlines() if line.startswith("0::")), "/")
        machine.cgroup_folder = "/sys/fs/cgroup" + own.rstrip("/")
        machine.cgroup_refused = attempts.cgroup_v2_delegated(Path(machine.cgroup_folder)) or ""
    elif Path("/sys/fs/cgroup/memory").is_dir():
        machine.cgroups = "hybrid" if Path("/sys/fs/cgroup/unified").is_dir() else "v1"
        machine.cgroup_refused = attempts.cgroup_v1_writable() or ""
    else:
        machine.cgroups, machine.cgroup_refused = "none", "no cgroup file system at /sys/fs/cgroup"


def _look_at_devices(machine: Machine) -> None:
    machine.fuse, machine.tun = _opens("/dev/fuse"), _opens("/dev/net/tun")
    driver = re.search(r"(\d+\.\d+(?:\.\d+)?)", _read("/proc/driver/nvidia/version") or "")
    machine.gpu_driver = driver.group(1) if driver else ""
    for card in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        model = re.search(r"^Model:\s*(.+)$", card.read_text(errors="replace"), re.MULTILINE)
        machine.gpus.append(model.group(1).strip() if model else "NVIDIA GPU")
    if not machine.gpus:        # in some containers only the device nodes are there
        machine.gpus = ["NVIDIA GPU"] * sum(1 for node in Path("/dev").glob("nvidia[0-9]*"))
    machine.cdi = any(any(Path(folder).glob("nvidia*")) for folder in ("/etc/cdi", "/var/run/cdi") if Path(folder).is_dir())
    machine.rdma_devices = sorted(device.name for device in Path("/sys/class/infiniband").glob("*"))


def _look_at_pythons(machine: Machine) -> None:
    machine.python = platform.python_version()
    machine.python_prefix = sys.base_prefix
    minors = {f"3.{minor}" for minor in range(9, 16) if find_tool(f"python3.{minor}")}
    machine.other_pythons = sorted(minors - {f"3.{sys.version_info.minor}"}, key=lambda v: int(v[2:]))


def _version(tool: str) -> str | None:
    """None: not found. Something is printed by each of them that has the version's number in it."""
    path = find_tool(tool)
    if path is None:
        return None
    for flag in ("--version", "-V"):
        try:
            said = subprocess.run([path, flag], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            continue
        found = re.search(r"\d+\.\d+(?:\.\d+)?|(?<=iproute2-)\S+|release-\S+|\d{8}\.\d", said.stdout + said.stderr)
        if said.returncode == 0 and found:
            return found.group(0).rstrip(",")
    return "version unknown"


def _has_capability(number: int) -> bool:
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", _read("/proc/self/status") or "", re.MULTILINE)
    return bool(effective and int(effective.group(1), 16) >> number & 1)


def _has_range(file: str) -> bool:
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = ""
    owners = {line.split(":")[0] for line in (_read(file) or "").splitlines() if line.count(":") == 2}
    return bool(owners & {name, str(os.geteuid())})


def _file_system(folder: str) -> str:
    """The type of what is mounted exactly there, "" if nothing is."""
    kinds = [fields[fields.index("-") + 1] for line in (_read("/proc/self/mountinfo") or "").splitlines()
             if (fields := line.split())[4] == folder]
    return kinds[-1] if kinds else ""


def _distribution() -> str:
    names = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read("/etc/os-release") or "", re.MULTILINE)
    return names.group(1) if names else "unknown distribution"


def _opens(device: str) -> bool:
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError:
        return False
    return True


def _read(file: str) -> str | None:
    try:
        return Path(file).read_text(errors="replace").strip()
    except OSError:
        return None
