"""What a rank puts after its input was decided is written down too."""

from __future__ import annotations

from phalanx.core import events as ev
from phalanx.model.cluster import Attempt
from tests.core.stories import OK, Story


def test_a_result_after_the_finish_window_survives_a_restart() -> None:
    """Or a restarted control plane takes the rank for one that still works. Found by weather: memory and store differed."""
    story = Story(2).working()
    story.tell(ev.Put(0, "in-1", 1, OK), ev.TimerFired("finish", "in-1", 1))
    story.gang.take_changed()
    story.tell(ev.Put(1, "in-1", 1, OK))
    (attempt,) = [record for record in story.gang.take_changed() if isinstance(record, Attempt)]
    assert attempt.decided and set(attempt.results) == {0, 1}
