"""python -m phalanx.node --state DIR: the agent of this machine."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from phalanx.config import Config
from phalanx.paths import Paths, default_state

from .agent import Agent, NotWelcome, lock
from .choose import NoRuntime
from .launching import LaunchFailed
from .saying import say

NEVER_WORKS = 78        # EX_CONFIG: whoever starts agents need not try again


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m phalanx.node", description=__doc__)
    parser.add_argument("--state", type=Path, help="the state folder; its config.json has the defaults")
    parser.add_argument("--nodes", type=int, help="virtual nodes on this machine (one, whatever this says, where it has real GPUs)")
    parser.add_argument("--gpus", type=int, help="simulated GPUs of a virtual node")
    parser.add_argument("--gpu", help="the type they say they are; any takes every type")
    parser.add_argument("--runtime", choices=["auto", "crun", "runc", "runsc", "process"])
    parser.add_argument("--node-name", default="node", help="what its nodes are called, with a number behind it: two agents of one "
                        "control plane need two names")
    parser.add_argument("--tasks-socket", type=Path, help="the control plane's socket for agents, where it is not this state folder's")
    parser.add_argument("--peer-listen", help="address:port at which the agents of other nodes reach this one with heartbeats")
    parser.add_argument("--clean", action="store_true", help="stop what an agent that is gone has left running, remove it, and end")
    arguments = parser.parse_args()
    paths = Paths((arguments.state or default_state()).resolve())
    config = Config.load(paths.config) if paths.config.exists() else Config()

    def chosen(name: str):  # type: ignore[no-untyped-def]
        given = getattr(arguments, name)
        return getattr(config, name) if given is None else given

    try:
        held = lock(paths.node)
    except BlockingIOError:
        say(f"another agent works with {paths.state} already")
        return 1
    try:
        agent = Agent(paths, chosen("nodes"), chosen("gpus"), chosen("gpu"), chosen("runtime"), config.join_secret, config.extra,
                      chosen("peer_listen"), arguments.tasks_socket, arguments.node_name)
        asyncio.run(agent.clean() if arguments.clean else agent.run())
    except (NotWelcome, NoRuntime, ValueError) as failure:
        say(str(failure))
        return NEVER_WORKS
    except LaunchFailed as failure:
        say(str(failure))
        return 1
    finally:
        held.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
