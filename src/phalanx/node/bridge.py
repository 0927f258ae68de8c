"""The workspace's bridge on this machine, its address ranges, and what keeps it apart from all else. Run by the launcher, stdlib only."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from . import firewall, network, programs

# 64 ranges of 4094 addresses, in the part of 10/8 that the usual tools (Docker, Kubernetes, libvirt, VPNs) take last.
CANDIDATES = list(ipaddress.ip_network("10.112.0.0/14").subnets(new_prefix=20))
_UPLINK_MARK = "/run/phalanx-forwarding"


class NoRange(Exception):
    """Every candidate range is used by the machine already."""


def make(name: str, ipv6: str, preferred: str, nameservers: list[str]) -> dict[str, Any]:
    """Make the bridge, or find it made; answers its ranges. `ipv6` is this agent's /64, `preferred` the IPv4 range it had before,
    `nameservers` are the addresses that containers ask for names.

    Raises NoRange, ProgramFailed.
    """
    with _one_at_a_time():
        existing = _range_of(name)
        if existing:
            firewall.set_rules(name, existing, nameservers)
            return {"name": name, "ipv4": existing, "ipv6": ipv6}
        used = networks_in_use()
        wanted6 = ipaddress.ip_network(ipv6)
        for other in used:
            if other.version == 6 and other.prefixlen > 0 and other.overlaps(wanted6):
                raise NoRange(f"{ipv6} is in use on this machine already ({other}): does a copy of this state folder run here too?")
        chosen = _choose(name, preferred, used)
        gateway = f"{chosen[1]}/{chosen.prefixlen}"
        programs.run(["ip", "-batch", "-"], (
            f"link add {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n"
            f"addr add {gateway} dev {name}\n"
            f"addr add {wanted6[1]}/64 dev {name} nodad\n"
            f"link set {name} up\n"
        ))
    try:
        firewall.open_for(name, str(chosen), nameservers)
        _forward(name)
    except (programs.ProgramFailed, OSError):
        remove(name)
        raise
    return {"name": name, "ipv4": str(chosen), "ipv6": ipv6}


def remove(name: str) -> None:
    """Take the bridge and its rules away; quiet when there are none."""
    firewall.close_for(name)
    programs.run(["ip", "link", "del", name], may_fail=True)
    _unforward(name)


def bridge_name(agent_id: str) -> str:
    """At most 15 characters, the kernel's limit."""
    return "phx" + hashlib.sha256(agent_id.encode()).hexdigest()[:8]


def networks_in_use() -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Every range that the machine has an address in or a route to, default routes and local ones left out."""
    found = []
    for family in ("-4", "-6"):
        for row in json.loads(programs.run(["ip", "-j", family, "addr"]) or "[]"):
            for address in row.get("addr_info", ()):
                if "local" in address:
                    found.append(ipaddress.ip_interface(f"{address['local']}/{address['prefixlen']}").network)
        for row in json.loads(programs.run(["ip", "-j", family, "route", "show", "table", "all"]) or "[]"):
            target = row.get("dst", "default")
            if target != "default" and row.get("type", "unicast") in ("unicast", "blackhole", "unreachable"):
                with contextlib.suppress(ValueError):
                    found.append(ipaddress.ip_network(target, strict=False))
    return [used for used in found if used.prefixlen > 0 and not used.is_multicast]


def _choose(name: str, preferred: str, used: list[Any]) -> ipaddress.IPv4Network:
    wanted = [ipaddress.ip_network(preferred)] if preferred else []
    # Each agent begins elsewhere, so that two machines that are joined later rarely have the same range.
    start = int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(CANDIDATES)
    for candidate in [*wanted, *CANDIDATES[start:], *CANDIDATES[:start]]:
        if not any(other.version == 4 and other.overlaps(candidate) for other in used):
            return candidate
    raise NoRange(f"no private IPv4 range is free for containers: 10.112.0.0/14 is all in use on this machine ({len(used)} networks)")


def _range_of(name: str) -> str:
    """The IPv4 range of a bridge that is there; empty when it is not."""
    if not network.exists(name):
        return ""
    for row in json.loads(programs.run(["ip", "-j", "-4", "addr", "show", "dev", name]) or "[]"):
        for address in row.get("addr_info", ()):
            return str(ipaddress.ip_interface(f"{address['local']}/{address['prefixlen']}").network)
    return ""


def _forward(name: str) -> None:
    """Let the bridge and the way out forward IPv4. IPv6 stays inside: its switch is the machine's, and turning it on can cost a host
    its own default route (router advertisements are then ignored)."""
    _write(f"/proc/sys/net/ipv4/conf/{name}/forwarding", "1")
    for row in json.loads(programs.run(["ip", "-j", "-4", "route", "show", "default"]) or "[]"):
        uplink = row.get("dev", "")
        path = f"/proc/sys/net/ipv4/conf/{uplink}/forwarding"
        if not uplink or _read(path) == "1" and not os.path.exists(f"{_UPLINK_MARK}-{uplink}"):
            continue        # the machine forwards there already: not ours to undo
        _write(path, "1")
        # Without root there is no place for the mark; the uplink is our own namespace's then, and nothing is to be undone.
        with contextlib.suppress(PermissionError), open(f"{_UPLINK_MARK}-{uplink}", "a") as file:
            file.write(f"{name}\n")


def _unforward(name: str) -> None:
    """Put the uplinks back as they were when the last bridge that needed them is gone."""
    folder, prefix = os.path.split(_UPLINK_MARK)
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            if not entry.startswith(f"{prefix}-"):
                continue
            path = os.path.join(folder, entry)
            with open(path) as file:
                others = {line.strip() for line in file} - {name, ""}
            if others := {other for other in others if network.exists(other)}:
                with open(path, "w") as file:
                    file.write("".join(f"{other}\n" for other in sorted(others)))
                continue
            os.unlink(path)
            with contextlib.suppress(OSError):
                _write(f"/proc/sys/net/ipv4/conf/{entry[len(prefix) + 1:]}/forwarding", "0")


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two control planes that start at once must not choose the same range. A name in the abstract socket space is a lock that
    belongs to this network namespace and leaves no file."""
    deadline = time.monotonic() + 20
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        while True:
            try:
                lock.bind("\0phalanx-network")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise NoRange("another process has been setting up container networks on this machine for 20 s") from None
                time.sleep(0.01)
        yield


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read().strip()
    return ""


def _write(path: str, value: str) -> None:
    with open(path, "w") as file:
        file.write(value)
