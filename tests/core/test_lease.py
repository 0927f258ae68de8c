"""Who may go on where contact is lost: the table of design rule 3, for agents and for the control plane."""

from __future__ import annotations

import pytest

from phalanx.core.lease import FOREVER, NEVER, Crew, Lease, Limits, Watch

LIMITS = Limits()       # lease 30 s, outage limit 15 min, silent after 8 s
FOUR = Crew(4, {f"ag-{rank}": frozenset({rank}) for rank in range(4)})
TWO = Crew(2, {"ag-0": frozenset({0}), "ag-1": frozenset({1})})
SECOND = 1000
MINUTE = 60 * SECOND
BEFORE = 0      # the control plane is heard of until then, and never again


class Cut:
    """One agent that has lost the control plane at time 0, and what its peers say to it every second."""

    def __init__(self, agent: str, crew: Crew) -> None:
        self.lease = Lease(agent, LIMITS)
        self.lease.take(7, crew)
        self.lease.server_answered(BEFORE)
        self.now = 0

    def hears(self, away: str = "", connected: str = "", until: int = 0) -> Cut:
        """Every second up to `until` these answer: the ones have lost the control plane too, from the 8th second on, the others not."""
        while self.now < until:
            self.now += SECOND
            for agent in away.split():
                self.lease.peer_answered(agent, self.now, self.now >= LIMITS.silent_ms, self.now)
            for agent in connected.split():
                self.lease.peer_answered(agent, self.now, False, self.now)
            self.goes_on = not self.lease.decide(7, self.now).stop
        return self

    @property
    def why(self) -> str:
        return self.lease.decide(7, self.now).stop


@pytest.mark.parametrize(
    ("agent", "away", "connected", "ends_s"),
    [
        ("ag-0", "", "", 30),                       # alone
        ("ag-3", "ag-2", "", 30),                   # half, without rank 0
        ("ag-0", "ag-1", "", 30),                   # half with rank 0, but the others were never heard of since
        ("ag-3", "ag-1 ag-2", "", 900),             # three of four
        ("ag-0", "ag-1 ag-2 ag-3", "", 900),        # all: the control plane is away
        ("ag-0", "ag-1 ag-2", "ag-3", 30),          # one of them reaches it: we are cut off
        ("ag-0", "", "ag-1 ag-2 ag-3", 30),
    ],
)
def test_how_long_an_agent_goes_on(agent: str, away: str, connected: str, ends_s: int) -> None:
    cut = Cut(agent, FOUR)
    assert cut.hears(away, connected, until=ends_s * SECOND - 1 * SECOND).goes_on
    assert not cut.hears(away, connected, until=ends_s * SECOND).goes_on
    assert cut.why


@pytest.mark.parametrize(("agent", "others", "goes_on"), [("ag-0", "ag-1", True), ("ag-1", "ag-0", True), ("ag-2", "ag-3", False)])
def test_in_an_even_split_the_side_with_rank_0_goes_on(agent: str, others: str, goes_on: bool) -> None:
    """First the control plane goes, then the network breaks in two halves."""
    cut = Cut(agent, FOUR).hears("ag-0 ag-1 ag-2 ag-3", until=20 * SECOND)
    assert cut.hears(others, until=60 * SECOND).goes_on is goes_on
    assert cut.hears(others, until=899 * SECOND).goes_on is goes_on
    assert not cut.hears(others, until=900 * SECOND).goes_on


@pytest.mark.parametrize(("agent", "other", "goes_on"), [("ag-0", "ag-1", True), ("ag-1", "ag-0", False)])
def test_a_split_of_two(agent: str, other: str, goes_on: bool) -> None:
    cut = Cut(agent, TWO).hears(other, until=20 * SECOND)
    assert cut.hears(until=60 * SECOND).goes_on is goes_on


def test_rank_0_that_is_cut_off_alone_stops_after_its_lease() -> None:
    """Its peer had the control plane when it was last heard of: the other half waits for this one's end."""
    cut = Cut("ag-0", TWO).hears(connected="ag-1", until=5 * SECOND)
    assert cut.hears(until=29 * SECOND).goes_on
    assert not cut.hears(until=30 * SECOND).goes_on
    assert cut.why == ("no word from the control plane for 30 s, and only 1 of 2 ranks are on nodes that reach each other: "
                       "over the lease of 30 s")


def test_a_cluster_on_one_agent_has_the_outage_limit() -> None:
    cut = Cut("ag-0", Crew(2, {"ag-0": frozenset({0, 1})}))
    assert cut.hears(until=899 * SECOND).goes_on
    assert cut.hears(until=900 * SECOND).why == "no word from the control plane for 900 s: over the outage limit of 900 s"


def test_whoever_loses_its_peers_later_has_a_lease_from_then_on() -> None:
    cut = Cut("ag-3", FOUR).hears("ag-0 ag-1 ag-2", until=300 * SECOND)
    assert cut.hears(until=329 * SECOND).goes_on
    assert not cut.hears(until=330 * SECOND).goes_on


def test_a_control_plane_that_comes_back_late_finds_the_majority_running() -> None:
    cut = Cut("ag-0", FOUR).hears("ag-1 ag-2", until=800 * SECOND)
    cut.lease.server_answered(799 * SECOND)
    assert cut.hears("ag-1 ag-2", until=1600 * SECOND).goes_on


def test_when_peers_reach_the_control_plane_again_first_there_is_a_lease_to_follow_them() -> None:
    cut = Cut("ag-0", FOUR).hears("ag-1 ag-2 ag-3", until=600 * SECOND)
    assert cut.hears("ag-2 ag-3", "ag-1", until=629 * SECOND).goes_on
    assert not cut.hears("ag-2 ag-3", "ag-1", until=631 * SECOND).goes_on
    assert "another agent of the gang reaches it" in cut.why


def test_ranks_of_unknown_agents_count_as_on_the_other_side() -> None:
    cut = Cut("ag-0", Crew(4, {"ag-0": frozenset({0, 1})}))
    assert not cut.hears(until=30 * SECOND).goes_on


def test_an_agent_that_starts_again_is_allowed_what_it_was_before() -> None:
    """It has not reached the control plane yet: the shims know how long they may go on, and until when it was reached."""
    lease = Lease("ag-0", LIMITS)
    lease.take(7, TWO)
    assert lease.decide(7, 10 * MINUTE).until_ms == NEVER and not lease.decide(7, 10 * MINUTE).stop
    inherited = Lease("ag-0", LIMITS, reached_ms=5000)
    inherited.take(7, TWO)
    assert inherited.decide(7, 6000).until_ms == 35_000
    inherited.allow(7, 5 * MINUTE)      # it had carried on with its peers, of whom the new one has not heard yet
    assert inherited.decide(7, 4 * MINUTE).until_ms == 5 * MINUTE
    inherited.peer_answered("ag-1", 5 * MINUTE + 1, True, 5 * MINUTE + 2)       # too late
    assert inherited.decide(7, 5 * MINUTE + 3).stop


def test_new_limits_hold_from_the_answer_that_says_them() -> None:
    """Also where an earlier agent was allowed more by longer ones."""
    lease = Lease("ag-0", Limits())
    lease.take(7, Crew(1, {"ag-0": frozenset({0})}))
    lease.server_answered(0)
    lease.allow(7, 15 * MINUTE)
    lease.go_by(Limits(outage_limit_ms=MINUTE), 2 * MINUTE)
    assert lease.decide(7, 2 * MINUTE).until_ms == 3 * MINUTE


def test_without_an_outage_limit_nothing_stops() -> None:
    lease = Lease("ag-0", Limits(outage_limit_ms=0))
    lease.take(7, TWO)
    assert lease.decide(7, 10**9).until_ms == FOREVER


def test_words_that_come_late_or_twice_change_nothing() -> None:
    cut = Cut("ag-0", FOUR).hears("ag-1 ag-2", until=60 * SECOND)
    cut.lease.peer_answered("ag-1", 10 * SECOND, False, cut.now)
    assert cut.hears("ag-2", until=65 * SECOND).goes_on
    assert cut.lease.peers() == {"ag-1", "ag-2", "ag-3"}
    cut.lease.give_up(7)
    assert cut.lease.peers() == set()


# ---------------------------------------------------------------- the control plane


class Seen:
    """The control plane's view: agents whose heartbeats arrive every 2 s, and are answered."""

    def __init__(self, *agents: str) -> None:
        self.watch, self.now, self.agents = Watch(LIMITS), 0, set(agents)
        for agent in agents:
            self.watch.joined(agent, 0, 0)

    def until(self, now: int, said_away: int = 0) -> Seen:
        while self.now < now:
            self.now += 2 * SECOND
            for agent in self.agents:
                self.watch.beat(agent, self.now, self.now - 2 * SECOND, said_away, self.now)
        return self

    def lost(self, crew: Crew, agent: str, grace: int = 5 * SECOND) -> bool:
        return self.watch.overdue(crew, agent, grace, self.now) is not None


ALL = ("ag-0", "ag-1", "ag-2", "ag-3")


@pytest.mark.parametrize(
    ("crew", "gone", "lost_after_s"),
    [
        (FOUR, ("ag-3",), 45),                          # lease, 10 s, grace of 5 s
        (FOUR, ("ag-0",), 45),
        (FOUR, ("ag-2", "ag-3"), 45),                   # half without rank 0
        (FOUR, ("ag-0", "ag-1"), 45),                   # half with rank 0, that knows the others to be connected
        (FOUR, ("ag-1", "ag-2", "ag-3"), 915),          # a majority may carry on
        (FOUR, ALL, 915),
        (TWO, ("ag-0",), 45),
        (TWO, ("ag-1",), 45),
        (Crew(1, {"ag-1": frozenset({0})}), ("ag-1",), 915),            # a single node
        (Crew(2, {"ag-1": frozenset({0, 1})}), ("ag-1",), 915),         # two nodes of one agent
    ],
)
def test_when_the_control_plane_takes_a_node_for_lost(crew: Crew, gone: tuple[str, ...], lost_after_s: int) -> None:
    seen = Seen(*ALL).until(MINUTE)
    seen.agents -= set(gone)
    assert not seen.until(MINUTE + lost_after_s * SECOND - 2 * SECOND).lost(crew, gone[0])
    assert seen.until(MINUTE + lost_after_s * SECOND + 2 * SECOND).lost(crew, gone[0])
    assert not any(seen.lost(crew, agent) for agent in ALL if agent not in gone)


def test_its_own_absence_is_charged_to_nobody() -> None:
    """It is back, and one agent of four is not: who carried on with whom meanwhile is not known, so the limit counts from the return."""
    watch = Watch(LIMITS, start_ms=5 * MINUTE)
    assert watch.overdue(TWO, "ag-0", 0, 5 * MINUTE + 100 * SECOND) is None
    assert watch.overdue(TWO, "ag-0", 0, 20 * MINUTE + 10 * SECOND) is not None


def test_case_86_one_missed_heartbeat_is_nothing_and_a_few_only_set_the_node_aside() -> None:
    seen = Seen(*ALL).until(MINUTE)
    seen.agents.remove("ag-3")
    assert not seen.watch.is_silent("ag-3", seen.until(MINUTE + 4 * SECOND).now)
    assert seen.watch.is_silent("ag-3", seen.until(MINUTE + 8 * SECOND).now)
    assert not seen.lost(FOUR, "ag-3")
    seen.agents.add("ag-3")
    assert not seen.watch.is_silent("ag-3", seen.until(MINUTE + 10 * SECOND).now)


def test_an_even_half_that_may_know_the_other_to_be_away_has_the_outage_limit() -> None:
    """All lost us for a while; one half came back, and may have told the other before that it had lost us."""
    seen = Seen(*ALL).until(MINUTE)
    seen.agents.clear()
    seen.until(2 * MINUTE)
    for agent in ("ag-2", "ag-3"):
        seen.watch.joined(agent, seen.now, seen.now)
        seen.agents.add(agent)
    assert not seen.until(10 * MINUTE).lost(FOUR, "ag-0")
    assert seen.until(MINUTE + 916 * SECOND).lost(FOUR, "ag-0")


def test_an_agent_that_hears_no_answers_may_have_told_others_that_it_lost_us() -> None:
    """Its heartbeats arrive and say when."""
    seen = Seen("ag-0", "ag-1").until(MINUTE)
    seen.agents.remove("ag-0")
    seen.until(MINUTE + 20 * SECOND).until(MINUTE + 22 * SECOND, said_away=MINUTE + 20 * SECOND)
    assert not seen.until(5 * MINUTE).lost(TWO, "ag-0")
