"""Heartbeats among agents: who may say what, and what an old or a foreign datagram proves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from phalanx.node.peers import BadAddress, Peers, parse_address


class Agent:
    """One side: its clock, what it says of the control plane, and what it heard."""

    def __init__(self, name: str, secret: str = "fleet", boot: str = "boot", clock: int = 1_000_000) -> None:
        self.name, self.now, self.away = name, clock, False
        self.heard: list[tuple[str, int, bool]] = []
        self.peers = Peers(name, boot, secret, self._clock, lambda: self.away, lambda *word: self.heard.append(word))

    def _clock(self) -> int:
        self.now += 1
        return self.now


async def told(condition: Callable[[], object], agents: list[Agent], greeting: bool = True) -> None:
    """Until it comes true, while the agents greet each other."""
    for _ in range(2000):
        if condition():
            return
        if greeting:
            for agent in agents:
                agent.peers.greet(other.name for other in agents if other is not agent)
        await asyncio.sleep(0.005)
    raise AssertionError("the condition did not come true")


def with_agents(*agents: Agent, story: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        for agent in agents:
            await agent.peers.open()
        for agent in agents:
            for other in agents:
                agent.peers.know(other.name, other.peers.address)
        try:
            await story()
        finally:
            for agent in agents:
                agent.peers.close()

    asyncio.run(run())


def test_each_hears_what_the_other_says_as_of_its_own_clock() -> None:
    one, other = Agent("ag-1", clock=5_000), Agent("ag-2", clock=9_000_000)
    other.away = True

    async def story() -> None:
        await told(lambda: one.heard and other.heard, [one, other])
        name, sent, away = one.heard[-1]
        assert name == "ag-2" and away and 5_000 < sent <= one.now
        assert other.heard[-1][1] > 9_000_000 and not other.heard[-1][2]

    with_agents(one, other, story=story)


def test_who_does_not_know_the_fleets_secret_is_not_heard() -> None:
    one, stranger, other = Agent("ag-1"), Agent("ag-2", secret="guessed"), Agent("ag-3")

    async def story() -> None:
        await told(lambda: any(name == "ag-3" for name, *_ in one.heard), [one, stranger, other])
        assert not stranger.heard and {name for name, *_ in one.heard} == {"ag-3"}

    with_agents(one, stranger, other, story=story)


def test_a_recorded_datagram_proves_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Agent("ag-1"), Agent("ag-2")
    recorded: list[bytes] = []
    received = one.peers.datagram_received
    monkeypatch.setattr(one.peers, "datagram_received", lambda data, address: (recorded.append(data), received(data, address)))

    async def story() -> None:
        await told(lambda: len(one.heard) >= 3, [one, other])
        before = list(one.heard)
        for data in list(recorded):
            received(data, ("127.0.0.1", 9))       # from somewhere else, too: it must not become the peer's address
        received(b"PHX1" + b"x" * 16 + b"{}", ("127.0.0.1", 9))
        received(b"", ("127.0.0.1", 9))
        assert one.heard == before
        await told(lambda: len(other.heard) > 3, [one, other])

    with_agents(one, other, story=story)


def test_an_agent_that_starts_again_elsewhere_is_found_by_its_word(tmp_path: Path) -> None:
    one, other = Agent("ag-1"), Agent("ag-2")

    async def story() -> None:
        await told(lambda: one.heard, [one, other])
        other.peers.close()
        again = Agent("ag-2", boot="another boot", clock=10)
        await again.peers.open()
        again.peers.know("ag-1", one.peers.address)
        before = len(one.heard)
        await told(lambda: len(one.heard) > before + 2 and again.heard, [again, one])
        again.peers.close()

    with_agents(one, other, story=story)


def test_the_port_of_last_time_is_tried_first_and_any_other_taken_when_it_is_in_use(tmp_path: Path) -> None:
    async def story() -> None:
        memory = tmp_path / "port"
        first, second = Agent("ag-1"), Agent("ag-1")
        await first.peers.open(memory=memory)
        address = first.peers.address
        first.peers.close()
        await asyncio.sleep(0)
        await second.peers.open(memory=memory)
        assert second.peers.address == address
        third = Agent("ag-1")
        await third.peers.open(memory=memory)
        assert third.peers.address != address
        for agent in (second, third):
            agent.peers.close()

    asyncio.run(story())


def test_addresses() -> None:
    assert parse_address("10.0.0.7:7000") == ("10.0.0.7", 7000)
    assert parse_address("[fd00::1]:7000") == ("fd00::1", 7000)
    for bad in ("10.0.0.7", ":7000", "10.0.0.7:port", "10.0.0.7:70000", "0.0.0.0:7000", "[::]:7000"):
        with pytest.raises(BadAddress):
            parse_address(bad)
    Agent("ag-1").peers.know("ag-2", "nonsense")     # from another agent: passed over


def test_an_address_that_is_not_ours_is_said() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadAddress, match="can't listen"):
            asyncio.run(Agent("ag-1").peers.open(listen))
