"""Runs the rounds of one size: every peer once a round, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.daemons import settle
from peers.peer import Peer, Timing

Launch = tuple[str, bool]           # a peer's name, and whether its ranks import the runner


@dataclass
class Measured:
    """Of one size. A list has an entry for each round, None where it failed."""

    launches: dict[Launch, list[Timing | None]] = field(default_factory=dict)
    warm: dict[str, list[Timing | None]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)      # the first of each peer


def measure(size: int, peers: list[Peer], folder: Path, count: int, warm_count: int) -> Measured:
    measured = Measured({}, {}, {peer.name: reason for peer in peers if (reason := peer.missing())})
    up: list[Peer] = []
    try:
        for peer in peers:
            if peer.name not in measured.missing:
                up.append(peer)     # before it starts: a start that fails half-way is stopped too
                _say(f"{size} ranks: starting {peer.name}")
                _try(measured, peer, lambda peer=peer: peer.start(folder / peer.name.split()[-1].strip("()"), size))
        for number in range(count):
            _say(f"{size} ranks: launch round {number + 1} of {count}")
            _launch_round(measured, _working(measured, up), size)
        settle()
        for number in range(warm_count + 1):
            _warm_round(measured, _working(measured, up), size, discard=number == 0)
        for peer in _working(measured, up):
            _take_times_in_code(measured, peer, size)
    finally:
        for peer in reversed(up):
            _try(measured, peer, peer.stop)
    return measured


def _launch_round(measured: Measured, peers: list[Peer], size: int) -> None:
    for runner in (False, True):
        for peer in peers:
            if runner in peer.launches:
                settle()
                timing = _try(measured, peer, lambda peer=peer, runner=runner: peer.round(size, runner))
                measured.launches.setdefault((peer.name, runner), []).append(timing)


def _warm_round(measured: Measured, peers: list[Peer], size: int, discard: bool) -> None:
    """The first one makes what is warm from then on."""
    for peer in peers:
        if peer.has_warm:
            timing = _try(measured, peer, lambda peer=peer: peer.warm_round(size))
            if not discard:
                measured.warm.setdefault(peer.name, []).append(timing)


def _take_times_in_code(measured: Measured, peer: Peer, size: int) -> None:
    """Some peers know only afterwards when their ranks were in user code."""
    later = getattr(peer, "warm_times_in_code", None)
    times = later and _try(measured, peer, lambda: later(size))
    if times:
        rows = measured.warm[peer.name]
        measured.warm[peer.name] = [row and Timing(time, row.result) for row, time in zip(rows, times[-len(rows) :], strict=True)]


def _working(measured: Measured, peers: list[Peer]) -> list[Peer]:
    return [peer for peer in peers if peer.name not in measured.failures]


def _try(measured: Measured, peer: Peer, action: Callable[[], Any]) -> Any:
    """A peer that fails takes no further part; the others go on."""
    try:
        return action()
    except Exception as error:
        measured.failures.setdefault(peer.name, f"{type(error).__name__}: {error}")
        _say(f"{peer.name} failed: {error}")
        return None


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
