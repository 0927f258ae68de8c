"""Which address each container of this agent has. Pure bookkeeping: the ranges are the bridge's."""

from __future__ import annotations

import hashlib
import ipaddress

from .outfit import Addresses
from .spec import Network


class NoAddress(Exception):
    """The range is used up."""


class Ranges:
    """Numbers from the bridge's two ranges, each used again as late as possible: neighbours may still remember it."""

    def __init__(self, bridge: str, ipv4: str, ipv6: str, workspace: str) -> None:
        self.bridge, self.workspace = bridge, workspace
        self.ipv4, self.ipv6 = ipaddress.ip_network(ipv4), ipaddress.ip_network(ipv6)
        self._taken: dict[str, int] = {}
        self._next = 2

    def take(self, container: str, way_out: bool) -> Addresses:
        """Addresses for that container; the same ones when it has some. NoAddress when there are none left."""
        number = self._taken.get(container) or self._free()
        self._taken[container] = number
        ipv4, ipv6 = self.ipv4[number], self.ipv6[number]
        port = "phv" + hashlib.sha256(f"{self.bridge} {container}".encode()).hexdigest()[:10]
        return Addresses(str(ipv4), str(ipv6), Network(
            bridge=self.bridge, port=port, mac=_mac(ipv4.packed), ipv4=f"{ipv4}/{self.ipv4.prefixlen}",
            ipv6=f"{ipv6}/{self.ipv6.prefixlen}", gateway=str(self.ipv4[1]) if way_out else "", workspace=self.workspace))

    def adopt(self, container: str, ipv4: str) -> None:
        """A container of an earlier agent has this address."""
        address = ipaddress.ip_address(ipv4)
        if address in self.ipv4:
            self._taken[container] = int(address) - int(self.ipv4.network_address)

    def free(self, container: str) -> None:
        self._taken.pop(container, None)

    def _free(self) -> int:
        used = set(self._taken.values())
        size = self.ipv4.num_addresses - 1      # the last one is broadcast
        for step in range(size):
            number = 2 + (self._next - 2 + step) % (size - 2)
            if number not in used:
                self._next = number + 1
                return number
        raise NoAddress(f"all {size - 2} addresses of {self.ipv4} are in use")


def process_addresses(agent_id: str, assignment: int, rank: int) -> Addresses:
    """Plain processes share the machine's loopback: IPv4 differs by rank and cluster, IPv6 has one address only."""
    mixed = hashlib.sha256(f"{agent_id} {assignment}".encode()).digest()
    return Addresses(f"127.{64 + mixed[0] % 128}.{mixed[1]}.{2 + rank % 250}", "::1")


def agent_subnet(workspace_prefix: str, agent_id: str) -> tuple[str, str]:
    """(the workspace's /48, this agent's /64 in it)."""
    own = int(hashlib.sha256(agent_id.encode()).hexdigest()[:4], 16) or 1
    return f"{workspace_prefix}::/48", f"{workspace_prefix}:{own:x}::/64"


def _mac(ipv4: bytes) -> str:
    return "02:ff:" + ":".join(f"{byte:02x}" for byte in ipv4)
