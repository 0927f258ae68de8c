"""What remains of a container: kept, looked for again, and said to the server also where that was away when it went."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from phalanx.node.agent import Agent
from phalanx.node.launching import LaunchFailed
from phalanx.node.remains import Left, Remains
from phalanx.protocol import agent_pb2 as pb


class Half:
    """So much of an agent as these stories need."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.session = None
        self.remains = Remains(partial(Agent._say_state, self))
        self.launcher = self

    def _send(self, message: pb.FromAgent) -> None:
        if self.session is not None:
            self.said.append((message.node_state.node_id, message.node_state.unschedulable))

    _say_state = Agent._say_state

    async def ask(self, **request: Any) -> dict[str, Any]:
        raise LaunchFailed("the launcher could not fork")


async def gone(patience_s: float) -> str:
    return ""


def test_what_went_while_the_server_was_away_is_said_when_it_is_back() -> None:
    """What the agent registered with is as old as the server's absence: the front holds it until then."""
    agent: Any = Half()
    agent.remains.keep("one", Left(("node-0",), "UNKILLABLE: one", gone))
    registered = pb.Register(nodes=[pb.NodeFacts(node_id=n, unschedulable=agent.remains.of(n)) for n in ("node-0", "node-1")])
    asyncio.run(agent.remains.look(0.0))
    assert agent.said == []
    agent.session = "the server is back"
    Agent._say_what_changed_since(agent, registered)
    assert agent.said == [("node-0", "")]


def test_a_launcher_that_fails_ends_no_look_at_the_rest() -> None:
    agent: Any = Half()
    agent.session = "connected"
    agent.remains.keep("one", Left(("node-0",), "processes of one", partial(Agent._remove_stray, agent, "one")))
    agent.remains.keep("two", Left(("node-1",), "processes of two", gone))
    asyncio.run(agent.remains.look(0.0))
    assert agent.said == [("node-1", "")] and agent.remains.of("node-0") == "processes of one"
