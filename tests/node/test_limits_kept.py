"""The limits that an agent was told are on its disk for the next agent, as soon as the disk has room for them."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from phalanx.core.lease import Limits
from phalanx.node import leases
from phalanx.protocol import agent_pb2 as pb


def next_agents(memory: Path) -> Limits:
    """What an agent goes by that starts now."""
    following = leases.Leases("a", "boot", "secret", {}, memory)
    following.adopt()
    return following.lease.limits


def test_limits_that_came_while_the_disk_was_full_are_written_when_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = leases.Leases("a", "boot", "secret", {}, tmp_path)
    agent.welcomed(pb.Welcome(lease_ms=30_000, outage_limit_ms=900_000, silent_ms=8_000), 1)
    assert next_agents(tmp_path) == Limits(30_000, 900_000, 8_000)

    def full(path: str, text: str) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    shorter = pb.Welcome(lease_ms=6_000, outage_limit_ms=10_000, silent_ms=2_000)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "write_whole", full)
        agent.welcomed(shorter, 2)
    assert agent.lease.limits == Limits(6_000, 10_000, 2_000) and next_agents(tmp_path).lease_ms == 30_000
    monkeypatch.setattr(leases, "_TICK_SECONDS", 0.0)

    async def one_look() -> None:
        watching = asyncio.create_task(agent.watch())
        while next_agents(tmp_path).lease_ms == 30_000:     # noqa: ASYNC110 (a file tells nobody)
            await asyncio.sleep(0)
        watching.cancel()

    asyncio.run(asyncio.wait_for(one_look(), 30.0))
    assert next_agents(tmp_path) == Limits(6_000, 10_000, 2_000)
