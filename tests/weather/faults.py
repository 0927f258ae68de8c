"""What can go wrong, one function each. To add a fault, write one and give it a weight in FAULTS."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from modal_proto import api_pb2

from phalanx.model.caller import Caller

Fault = Callable[[Any], Awaitable[None]]


def between(world: Any, least_s: float, most_s: float) -> float:
    """Seconds, short ones as often as long ones."""
    return math.exp(world.randomness.uniform(math.log(least_s), math.log(most_s)))


async def kill_server(world: Any) -> None:
    world.plane.kill(between(world, 0.1, 600))


async def kill_server_in_commits(world: Any) -> None:
    """Before a transaction, or after it and before anything is acted on."""
    world.plane.crash_in_commit = 0.03
    await asyncio.sleep(between(world, 10, 300))
    world.plane.crash_in_commit = 0.0


async def fill_disk(world: Any) -> None:
    world.plane.rows.full = True
    await asyncio.sleep(between(world, 1, 120))
    world.plane.rows.full = False


async def slow_disk(world: Any) -> None:
    world.plane.rows.slow_s = between(world, 0.1, 5)
    await asyncio.sleep(between(world, 10, 300))
    world.plane.rows.slow_s = 0.002


async def kill_agent(world: Any) -> None:
    host = world.some_host()
    host.kill_agent()
    await asyncio.sleep(between(world, 0.1, 60))
    host.start_agent()


async def cut_connection(world: Any) -> None:
    world.some_host().cut_connection()


async def cut_off(world: Any, host: Any = None) -> None:
    """A node that the control plane does not reach, up to beyond the outage limit."""
    host = host or world.some_host()
    host.is_cut = True
    host.cut_connection()
    world.excuse(host, "cut")
    await asyncio.sleep(between(world, 1, 2400))
    host.is_cut = False


async def leave_alone(world: Any) -> None:
    """A node that reaches nobody: neither the control plane, nor its peers."""
    host = world.some_host()
    host.is_alone = True
    await cut_off(world, host)
    host.is_alone = False


async def power_off(world: Any) -> None:
    host = world.some_host()
    host.power_off()
    await asyncio.sleep(between(world, 5, 3600))
    host.power_on()


async def kill_shim(world: Any) -> None:
    shims = [shim for host in world.hosts for shim in host.shims.values() if shim.phase in ("prepared", "running")]
    if shims:
        world.randomness.choice(shims).die()


async def jump_clock(world: Any) -> None:
    world.time.jumped_s += world.randomness.uniform(-600, 600)


async def rough_network(world: Any) -> None:
    world.weather.rough()
    for host in world.hosts:
        world.excuse(host, "stalled")
    await asyncio.sleep(between(world, 30, 600))
    world.weather.calm()


async def refuse_starts(world: Any) -> None:
    world.refuse, world.prepare_s = 0.3, 60.0
    await asyncio.sleep(between(world, 30, 600))
    world.refuse, world.prepare_s = 0.0, 3.0


async def fail_imports(world: Any) -> None:
    world.die_in_import = world.raise_in_import = 0.1
    await asyncio.sleep(between(world, 30, 600))
    world.die_in_import = world.raise_in_import = 0.0


async def stop_container(world: Any) -> None:
    """`modal container stop`, by somebody who may."""
    shims = [shim for host in world.hosts for shim in host.shims.values() if shim.phase == "running"]
    if not shims or not world.plane.is_up:
        return
    shim = world.randomness.choice(shims)
    graceful = world.randomness.random() < 0.5
    world.truth.infra(shim.spec.assignment, "container stop")
    for call in world.truth.calls.values():     # a container's stop ends what it runs
        if not graceful and shim.rank is not None and call.function.name == shim.rank.function.name:
            call.may_be_terminated = True
    caller = Caller(world.config.token_id, idempotency_key=f"stop {world.randomness.random()}")
    request = api_pb2.ContainerStopRequest(task_id=shim.spec.task_id)
    if hasattr(request, "graceful"):
        request.graceful = graceful
    try:
        await world.plane.rpc(caller, "ContainerStop", request)
    except Exception:       # it ended meanwhile, or nobody answered: somebody who stops things looks again
        return


async def drain_node(world: Any) -> None:
    """`phalanx node drain [--now]`, and back after a while."""
    plane, node_id, now = world.plane, world.some_host().name, world.randomness.random() < 0.6
    await plane.decide(lambda unit: plane.server.nodes.drain(unit, node_id, "weather", now=now))
    await asyncio.sleep(between(world, 1, 1800))
    await plane.decide(lambda unit: plane.server.nodes.uncordon(unit, node_id))


async def cordon_node(world: Any) -> None:
    plane, node_id = world.plane, world.some_host().name
    await plane.decide(lambda unit: plane.server.nodes.cordon(unit, node_id, "weather"))
    await asyncio.sleep(between(world, 1, 1800))
    await plane.decide(lambda unit: plane.server.nodes.uncordon(unit, node_id))


async def remove_node(world: Any) -> None:
    """Drained, then `phalanx node remove`: its agent brings it back, as it was left, and it serves again."""
    plane, host = world.plane, world.some_host()
    await plane.decide(lambda unit: plane.server.nodes.drain(unit, host.name, "weather", now=world.randomness.random() < 0.5))
    await asyncio.sleep(between(world, 60, 1800))
    await plane.decide(lambda unit: plane.server.nodes.remove(unit, host.name))
    await asyncio.sleep(between(world, 1, 600))
    host.kill_agent()
    await asyncio.sleep(5)
    host.start_agent()
    await put_back(world, host)


async def put_back(world: Any, host: Any) -> None:
    """`phalanx node uncordon`, once it is of the fleet again."""
    plane = world.plane
    while not await plane.decide(lambda unit: plane.server.nodes.uncordon(unit, host.name)):    # noqa: ASYNC110 - a person looks again
        await asyncio.sleep(30)


async def bury_node(world: Any) -> None:
    """A machine that is off for good, as far as anybody knows: `phalanx node remove --dead`, and one day it is back."""
    plane, host = world.plane, world.some_host()
    host.power_off()
    await asyncio.sleep(between(world, 1, 600))
    if host.is_off:     # else another fault has started it meanwhile, and it is not dead
        await plane.decide(lambda unit: plane.server.nodes.remove(unit, host.name, dead=host.is_off))
    await asyncio.sleep(between(world, 5, 3600))
    host.power_on()


async def replace_machine(world: Any) -> None:
    """A new machine with the name of the old one: another agent, and nothing on its disk."""
    host = world.some_host()
    host.power_off()
    host.renew()
    await asyncio.sleep(between(world, 5, 600))
    host.power_on()


async def slow_pulls(world: Any) -> None:
    """Images take longer than the fleet allows, sometimes."""
    world.prepare_s = 1200.0
    await asyncio.sleep(between(world, 30, 1200))
    world.prepare_s = 3.0


async def slow_containers(world: Any) -> None:
    """They take longer until they say hello than the fleet allows, sometimes."""
    world.hello_s = 600.0
    await asyncio.sleep(between(world, 30, 600))
    world.hello_s = 2.0


FAULTS: dict[Fault, float] = {
    kill_server: 3, kill_server_in_commits: 1, fill_disk: 0.5, slow_disk: 0.5, kill_agent: 2, cut_connection: 2, cut_off: 1, leave_alone: 1,
    power_off: 1, kill_shim: 1, jump_clock: 0.5, rough_network: 1, refuse_starts: 0.5, fail_imports: 0.3, stop_container: 0.5,
    drain_node: 1, cordon_node: 0.5, remove_node: 0.5, bury_node: 0.5, replace_machine: 0.5, slow_pulls: 0.3, slow_containers: 0.3,
}  # fmt: skip
