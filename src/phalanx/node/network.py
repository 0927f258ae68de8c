"""One container's network: a namespace with eth0, joined to the workspace's bridge. Runs in the shim, stdlib only.

The namespace has no name: it lives as long as the container's processes or the shim, and takes the veth pair with it. So nothing is left
even when both are killed. `ip -batch` costs 2 ms and reads as what it does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable

from . import namespaces, programs
from .spec import Network

CHECK_SECONDS = 3.0
_CHECK_PORT = 1        # nobody listens there: the answer is a reset, which says that the address is alive


def attach(network: Network, namespace: int) -> None:
    """Give the namespace of that descriptor its eth0, on the bridge, both families. Raises programs.ProgramFailed."""
    programs.run(["ip", "-batch", "-"], (
        f"link add {network.port} type veth peer name eth0 address {network.mac} netns /proc/{os.getpid()}/fd/{namespace}\n"
        f"link set {network.port} master {network.bridge} up\n"
    ))
    with namespaces.inside_network(namespace):
        # ping without CAP_NET_RAW, as Docker sets it. A user namespace with few groups refuses the range: no ping then.
        with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/ping_group_range", "w") as file:
            file.write("0 2147483647")
        programs.run(["ip", "-batch", "-"], _inner(network))


def exists(link: str) -> bool:
    """In our own network namespace: /sys may show another one's."""
    try:
        socket.if_nametoindex(link)
    except OSError:
        return False
    return True


def _inner(network: Network) -> str:
    lines = [
        "link set lo up",
        f"addr add {network.ipv4} dev eth0",
        f"addr add {network.ipv6} dev eth0 nodad",      # duplicate detection would hold the address back for a second
        "link set eth0 up",
    ]
    if network.workspace:
        lines.append(f"route add {network.workspace} dev eth0")
    if network.gateway:
        lines.append(f"route add default via {network.gateway}")
    return "\n".join(lines) + "\n"


class PeerCheck:
    """Is every address reachable from inside a container's network? Any answer counts, a refused connection too."""

    def __init__(
        self,
        namespace: int | None,
        addresses: list[str],
        selector: selectors.BaseSelector,
        later: Callable[[float, Callable[[], None]], None],
        done: Callable[[list[str]], None],
    ) -> None:
        self.namespace, self.selector, self.later, self.done = namespace, selector, later, done
        self.silent = set(addresses)
        self.attempts: dict[socket.socket, str] = {}
        self.deadline = time.monotonic() + CHECK_SECONDS
        self.finished = False
        self._try()

    def _try(self) -> None:
        """Knock at each address that has not answered yet, and again after a while."""
        if self.finished:
            return
        self._forget_all()
        if time.monotonic() > self.deadline:
            self._finish()
            return
        with contextlib.nullcontext() if self.namespace is None else namespaces.inside_network(self.namespace):
            for address in sorted(self.silent):
                attempt = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
                attempt.setblocking(False)
                self.attempts[attempt] = address
                error = attempt.connect_ex((address, _CHECK_PORT))
                if _is_answer(error):
                    self.silent.discard(address)
                elif error == errno.EINPROGRESS:
                    self.selector.register(attempt, selectors.EVENT_WRITE, lambda _events, attempt=attempt: self._ready(attempt))
        if not self.silent:
            self._finish()
            return
        self.later(0.5, self._try)

    def _ready(self, attempt: socket.socket) -> None:
        address = self.attempts[attempt]
        if _is_answer(attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            self.silent.discard(address)
        self._forget(attempt)
        if not self.silent:
            self._finish()

    def _finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        self._forget_all()
        self.done(sorted(self.silent))

    def _forget(self, attempt: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(attempt)
        self.attempts.pop(attempt, None)
        attempt.close()

    def _forget_all(self) -> None:
        for attempt in list(self.attempts):
            self._forget(attempt)


def _is_answer(error: int) -> bool:
    return error in (0, errno.ECONNREFUSED, errno.ECONNRESET)
