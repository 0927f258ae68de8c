"""Whatever arrives in whatever order: all or nothing, no illegal transition, every input decided once, every gang ends."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core import events as ev
from phalanx.core.gang import GangPolicy
from phalanx.model.cluster import Cause, MemberState, Phase
from tests.core.stories import FAILED, OK, TERMINATED, Story

RANKS = st.integers(0, 2)
INPUTS = st.sampled_from(["in-1", "in-2"])
RESULTS = st.sampled_from([OK, FAILED, TERMINATED])
TIMERS = ["prepare", "hello", "startup", "take", "timeout", "finish", "cancel", "drain", "linger"]
EVENTS = st.one_of(
    st.builds(ev.Prepared, RANKS),
    st.builds(ev.PrepareRefused, RANKS, st.just("code"), st.just("no")),
    st.builds(ev.PeersReached, RANKS, st.sampled_from([(), (), ("fdaa::1",)])),
    st.builds(ev.Hello, RANKS),
    st.builds(ev.ClusterHello, RANKS),
    st.builds(ev.AsksForInputs, RANKS),
    st.builds(ev.Fetched, RANKS, INPUTS),
    st.builds(ev.Put, RANKS, INPUTS, st.integers(0, 2), RESULTS),
    st.builds(ev.TaskFailed, RANKS, st.just(b""), st.just("ImportError")),
    st.builds(ev.Exited, RANKS, st.integers(0, 3000), st.integers(0, 1), st.sampled_from([0, 9]), st.booleans()),
    st.builds(ev.NodeLost, RANKS, st.just("gone")),
    st.builds(ev.Released, RANKS),
    st.builds(ev.StopAsked, st.sampled_from([Cause.STOPPED, Cause.IDLE, Cause.PREEMPTED]), st.just(""), st.booleans()),
    st.builds(ev.CancelAsked, INPUTS, st.booleans()),
    st.builds(ev.TimerFired, st.sampled_from(TIMERS), INPUTS, st.integers(0, 1)),
)
MEANT = (MemberState.IMPORTING, MemberState.READY)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(["placed", "running", "working"]), st.lists(EVENTS, max_size=40), st.booleans(), st.booleans())
def test_any_story_keeps_the_rules_and_comes_to_an_end(begin: str, events: list[ev.Event], clustered: bool, in_step: bool) -> None:
    story = Story(3, clustered=clustered, max_inputs=2, policy=GangPolicy(in_step=in_step))
    story.tell(ev.Placed())
    if begin != "placed":
        story.running()
    if begin == "working":
        story.tell(ev.Delivered("in-1", 1), ev.Delivered("in-2", 1))
    for event in events:
        story.tell(event)
        running = story.gang.assignment.phase == Phase.RUNNING
        meant = [m for m in story.gang.members if m.state in MEANT]
        assert running or story.gang.assignment.phase in (Phase.ENDING, Phase.ENDED) or not meant, "user code before the first barrier"

    story.tell(ev.StopAsked(Cause.STOPPED, "the end"), ev.TimerFired("linger"), ev.TimerFired("drain"))
    story.exit_all(code=1)
    story.tell(*(ev.NodeLost(r, "gone") for r in story.ranks))
    story.release_all()

    assert story.gang.assignment.phase == Phase.ENDED
    assert len(story.asked(ev.GangOver)) == 1
    ended = [i.input_id for i in story.said if isinstance(i, ev.Decide | ev.Requeue)]
    assert sorted(ended) == (["in-1", "in-2"] if begin == "working" else []), "each delivered input gets exactly one end"
