"""Somebody sets the machine's clock while the server runs. Found by weather: clients counted as silent, kills as crashes."""

from __future__ import annotations

import pytest

from phalanx.server import clock


class Machine:
    """In the place of the module `time`."""

    CLOCK_BOOTTIME = 7

    def __init__(self) -> None:
        self.wall_s, self.boot_s = 1_800_000_000.0, 50.0

    def time_ns(self) -> int:
        return int(self.wall_s * 1e9)

    def clock_gettime_ns(self, _: int) -> int:
        return int(self.boot_s * 1e9)


@pytest.mark.parametrize("jump_s", [600.0, -600.0])
def test_the_servers_time_goes_on_as_if_nothing_had_happened(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    machine = Machine()
    monkeypatch.setattr(clock, "time", machine)
    of_server = clock.RealClock()
    assert of_server.now_ms() == 1_800_000_000_000
    machine.boot_s += 5
    machine.wall_s += 5 + jump_s
    assert of_server.now_ms() == 1_800_000_005_000
    assert abs(clock.RealClock().now_ms() - 1_800_000_005_000 - jump_s * 1000) <= 1, "the next server takes the new time"
