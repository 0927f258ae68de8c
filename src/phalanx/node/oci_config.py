"""The OCI runtime's config.json for one container. stdlib only."""

from __future__ import annotations

import os
import resource
from typing import Any

from . import seccomp
from .spec import Spec

# Docker's default set without NET_RAW and MKNOD: with NET_RAW a container could forge its neighbours' addresses.
CAPABILITIES = [
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT", "CAP_AUDIT_WRITE",
]
_NUMBERS = {     # linux/capability.h
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7,
    "CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_SYS_CHROOT": 18, "CAP_AUDIT_WRITE": 29, "CAP_SETFCAP": 31,
}
OPEN_FILES = 1048576
# The kernel reaps the children of a process that ignores SIGCHLD: a reaper without a program of its own.
FIRST_PROCESS = ["/usr/bin/env", "--ignore-signal=CHLD", "sleep", "infinity"]

_MASKED = [
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
    "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def bundle_config(spec: Spec, root: str, network_namespace: str | None) -> dict[str, Any]:
    """config.json: everything around the first process."""
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    if not spec.rootless:
        namespaces.append({"type": "cgroup"})
    if network_namespace:
        namespaces.append({"type": "network", "path": network_namespace})
    linux: dict[str, Any] = {
        "namespaces": namespaces,
        "maskedPaths": _MASKED,
        "readonlyPaths": _READ_ONLY,
    }
    if (refused := seccomp.profile()) is not None:
        linux["seccomp"] = refused
    if not spec.rootless:
        linux["cgroupsPath"] = f"/{spec.cgroup}"
        linux["resources"] = _resources(spec)
        linux["devices"] = [_device(path) for path in spec.devices]
    return {
        "ociVersion": "1.0.2",
        "process": process_config(spec, FIRST_PROCESS, {"PATH": "/usr/bin:/bin"}, "/"),
        "root": {"path": root, "readonly": False},
        "hostname": spec.hostname,
        "mounts": _mounts(spec),
        "linux": linux,
    }


def process_config(spec: Spec, command: list[str], environment: dict[str, str], folder: str) -> dict[str, Any]:
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": command,
        "env": [f"{name}={value}" for name, value in environment.items()],
        "cwd": folder,
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted", "inheritable"), CAPABILITIES),
        "rlimits": [_rlimit("RLIMIT_NOFILE", OPEN_FILES), _rlimit("RLIMIT_MEMLOCK", resource.RLIM_INFINITY)],
        "noNewPrivileges": False,
    }


def fork_request(spec: Spec, command: list[str], environment: dict[str, str], folder: str) -> dict[str, Any]:
    """The same process for a zygote (zygote_inside.py), which knows no names of limits and capabilities."""
    process = process_config(spec, command, environment, folder)
    limits = [(getattr(resource, limit["type"]), *(_plain(limit[side]) for side in ("soft", "hard"))) for limit in process["rlimits"]]
    return {
        "argv": command, "env": list(environment.items()), "cwd": folder, "rlimits": limits,
        "capabilities": [_NUMBERS[name] for name in CAPABILITIES], "seccomp": seccomp.program().hex()}


def _plain(limit: int) -> int:
    return resource.RLIM_INFINITY if limit == (1 << 64) - 1 else limit


def _rlimit(name: str, wanted: int) -> dict[str, Any]:
    """What is wanted, or what this machine's hard limit leaves: raising that takes CAP_SYS_RESOURCE, which even root may lack."""
    _, hard = resource.getrlimit(getattr(resource, name))
    if hard != resource.RLIM_INFINITY and not may_raise_limits() and (wanted == resource.RLIM_INFINITY or wanted > hard):
        wanted = hard
    value = (1 << 64) - 1 if wanted == resource.RLIM_INFINITY else wanted
    return {"type": name, "soft": value, "hard": value}


def may_raise_limits() -> bool:
    """CAP_SYS_RESOURCE over the machine; a user namespace's own one does not count."""
    with open("/proc/self/status") as status, open("/proc/self/uid_map") as uid_map:
        capabilities = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))
        return bool(capabilities >> 24 & 1) and uid_map.read().split() == ["0", "0", "4294967295"]


def _mounts(spec: Spec) -> list[dict[str, Any]]:
    pts = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]
    if not spec.single_user:
        pts.append("gid=5")
    shm = ["nosuid", "nodev", "mode=1777"]
    if spec.limits.shm_bytes:
        shm.append(f"size={spec.limits.shm_bytes}")
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
        {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": pts},
        {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": shm},
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
        {"destination": "/run/phalanx", "type": "bind", "source": spec.api_folder, "options": ["bind", "ro", "nosuid", "nodev"]},
    ]
    for mount in spec.mounts:
        options = ["rbind", "rw" if mount.writable else "ro"]
        mounts.append({"destination": mount.target, "type": "bind", "source": mount.source, "options": options})
    if spec.rootless:
        mounts += [{"destination": path, "type": "bind", "source": path, "options": ["bind", "rw"]} for path in spec.devices]
    return mounts


def _resources(spec: Spec) -> dict[str, Any]:
    limits = spec.limits
    resources: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}, *(_allow(path) for path in spec.devices)]}
    if limits.memory_bytes:
        resources["memory"] = {"limit": limits.memory_bytes}
    cpu = {}
    if limits.cpu_quota_us:
        cpu |= {"quota": limits.cpu_quota_us, "period": 100_000}
    if limits.cpu_shares:
        cpu |= {"shares": limits.cpu_shares}
    if cpu:
        resources["cpu"] = cpu
    if limits.pids:
        resources["pids"] = {"limit": limits.pids}
    return resources


def _device(path: str) -> dict[str, Any]:
    number = os.stat(path).st_rdev
    return {"path": path, "type": "c", "major": os.major(number), "minor": os.minor(number), "fileMode": 0o666, "uid": 0, "gid": 0}


def _allow(path: str) -> dict[str, Any]:
    number = os.stat(path).st_rdev
    return {"allow": True, "type": "c", "major": os.major(number), "minor": os.minor(number), "access": "rw"}
