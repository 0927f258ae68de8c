"""An agent whose launcher was killed hung for ever once it had a zygote: its nodes stayed away, `phalanx down` took a minute and more."""

from __future__ import annotations

from .test_leaving_nothing import kill_launcher
from .test_zygote import forked, the_zygote, zygotes


def test_an_agent_with_a_zygote_ends_without_its_launcher_too(agent, server):
    number = forked(agent, server, 1, environment={"PROBE": "wait"})
    zygote = the_zygote(agent)
    kill_launcher(agent)
    assert agent.process.wait(30) == 1
    assert zygote not in zygotes(agent)
    registered = len(server.registers)
    agent.start()
    server.until(lambda: len(server.registers) > registered, agent.log)
    assert [(a.assignment, a.rank) for a in server.registers[-1].adopted] == [(number, 0)]
    server.stop(number, signal=2)
    assert server.finish(number).exited[0].code == 5
