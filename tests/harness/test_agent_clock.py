"""When a rank ended, in server time: heartbeats come late, clocks are set, and the agent may have been away."""

from __future__ import annotations

from phalanx.server.agent_clock import KEPT, AgentClock


def test_the_least_delayed_heartbeat_counts() -> None:
    clock = AgentClock()
    for boottime, delay in ((1_000, 300), (6_000, 5), (11_000, 900)):
        clock.heard(boottime, 1_000_000 + boottime + delay)
    assert clock.server_time_ms(10_500, 2_000_000) == 1_010_505


def test_nothing_ends_after_now_and_before_the_first_heartbeat_all_ends_now() -> None:
    clock = AgentClock()
    assert clock.server_time_ms(5_000, 777) == 777
    clock.heard(1_000, 900_000)
    assert clock.server_time_ms(3_000, 900_500) == 900_500


def test_a_wall_clock_that_is_set_forward_or_back_is_followed_at_the_next_heartbeat() -> None:
    clock = AgentClock()
    clock.heard(1_000, 1_001_000)
    clock.heard(6_000, 1_006_000 + 600_000)
    assert clock.server_time_ms(5_500, 2_000_000) == 1_005_500 + 600_000
    clock.heard(11_000, 1_011_000)
    assert clock.server_time_ms(10_500, 2_000_000) == 1_010_500


def test_clocks_that_drift_apart_are_followed() -> None:
    clock = AgentClock()
    for beat in range(3 * KEPT):
        clock.heard(beat * 5_000, 1_000_000 + beat * 5_010)
    assert clock.server_time_ms(0, 9_000_000) >= 1_000_000 + 10 * (2 * KEPT - 1)
