"""Heartbeats among the agents that share a gang, over UDP: whom do we reach, and do they reach the control plane? (design rule 3)

A datagram is "PHX1", 16 bytes of an HMAC over the rest, and JSON:
    {"from": agent, "to": agent, "boot": boot id, "sent": ms, "away": false, "echo": ms, "echo_boot": boot id}
`sent` is the sender's CLOCK_BOOTTIME; `echo` the newest `sent` that it has from the receiver, in that boot of the receiver's machine.
A word counts from the moment at which the receiver sent what it answers: no clock but one's own is read, and a recorded datagram that
somebody sends again proves nothing new.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"PHX1"
_MAC_BYTES = 16
_LOOPBACK_ANY = "127.0.0.1:0"

Address = tuple[str, int]


@dataclass
class _Peer:
    address: Address | None = None
    theirs: tuple[str, int] | None = None       # their boot id and the newest `sent` of theirs: what we echo
    newest: tuple[int, int] = (-1, -1)          # echo and sent of the newest word of theirs that counted


class BadAddress(ValueError):
    """The address to listen at can't be used; the text says which and why."""


class Peers(asyncio.DatagramProtocol):
    """`heard(agent, sent_ms, away)`: that agent has what we sent then, and says whether it has lost the control plane."""

    def __init__(
        self, agent_id: str, boot_id: str, secret: str, clock: Callable[[], int], is_away: Callable[[], bool],
        heard: Callable[[str, int, bool], None],
    ) -> None:
        self.agent_id, self.boot_id = agent_id, boot_id
        self._key = hmac.digest(secret.encode(), b"phalanx peers 1", "sha256")
        self._clock, self._is_away, self._heard = clock, is_away, heard
        self._peers: dict[str, _Peer] = {}
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self, listen: str = _LOOPBACK_ANY, memory: Path | None = None) -> None:
        """Listen. With port 0 the port of last time is tried first (`memory` keeps it), so that peers find a new agent where the old was.
        Raises BadAddress."""
        host, port = parse_address(listen)
        last = int(memory.read_text()) if port == 0 and memory is not None and memory.exists() else 0
        for attempt in dict.fromkeys((port or last, port)):
            try:
                self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=(host, attempt))
                break
            except OSError as error:
                failure = error
        else:
            raise BadAddress(f"peer_listen is {listen!r}, where this agent can't listen: {failure.strerror}")
        if memory is not None:
            memory.write_text(self.address.rpartition(":")[2])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    @property
    def address(self) -> str:
        """Where we listen: what the control plane tells our peers."""
        if self._transport is None:
            return ""
        host, port = self._transport.get_extra_info("sockname")[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def know(self, agent_id: str, address: str) -> None:
        """The control plane says where an agent listens."""
        with contextlib.suppress(BadAddress):
            if address and agent_id != self.agent_id:
                self._peers.setdefault(agent_id, _Peer()).address = parse_address(address)

    def greet(self, agents: Iterable[str]) -> None:
        """Send a heartbeat to each of these agents whose address we know."""
        for agent_id in agents:
            peer = self._peers.get(agent_id)
            if peer is not None and peer.address is not None:
                self._send(agent_id, peer, peer.address)

    # ---------------------------------------------------------------- datagrams

    def datagram_received(self, data: bytes, address: Any) -> None:
        word = self._read(data)
        if word is None:
            return
        agent_id, sent, boot, source = word["from"], word["sent"], word["boot"], (address[0], address[1])
        peer = self._peers.setdefault(agent_id, _Peer())
        if peer.theirs is None or peer.theirs[0] != boot or sent > peer.theirs[1]:
            peer.theirs = (boot, sent)
        echo = word["echo"] if word["echo_boot"] == self.boot_id and word["echo"] <= self._clock() else -1
        if echo < 0:            # it has nothing of ours: it has just begun, maybe at another address
            self._send(agent_id, peer, source)
        elif (echo, sent) > peer.newest:
            peer.newest, peer.address = (echo, sent), source
            self._heard(agent_id, echo, word["away"])

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there, or no way leads there: silence says the same."""

    def _send(self, agent_id: str, peer: _Peer, address: Address) -> None:
        if self._transport is None:
            return
        echo_boot, echo = peer.theirs or ("", -1)
        body = json.dumps({
            "from": self.agent_id, "to": agent_id, "boot": self.boot_id, "sent": self._clock(), "away": self._is_away(), "echo": echo,
            "echo_boot": echo_boot}).encode()
        self._transport.sendto(MAGIC + self._mac(body) + body, address)

    def _read(self, data: bytes) -> dict[str, Any] | None:
        """What an agent with our secret has written for us; anything else is passed over."""
        head, body = data[: len(MAGIC) + _MAC_BYTES], data[len(MAGIC) + _MAC_BYTES :]
        if not head.startswith(MAGIC) or not hmac.compare_digest(head[len(MAGIC) :], self._mac(body)):
            return None
        word: dict[str, Any] = json.loads(body)
        return word if word["to"] == self.agent_id else None

    def _mac(self, body: bytes) -> bytes:
        return hmac.new(self._key, MAGIC + body, hashlib.sha256).digest()[:_MAC_BYTES]


def parse_address(text: str) -> Address:
    """"127.0.0.1:0" or "[fd00::1]:7000" in its parts. Raises BadAddress, also for all addresses: no peer could reach those."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise BadAddress(f"peer_listen is {text!r}, and an address with a port is wanted, such as 10.0.0.7:7000 (port 0: any)")
    if host in ("0.0.0.0", "::"):
        raise BadAddress(f"peer_listen is {text!r}: name the one address at which the other agents reach this machine")
    return host, int(port)
