"""How many clusters a function should have: from waiting inputs, the pool's settings, and who has been idle for how long.

Pure, like the planner. `wanted` says how many gangs to ask for and which idle clusters to end; the planner decides when they start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pool:
    """The settings of one function. The three counts are in nodes, as the client gives them, and multiples of `size`."""

    function_id: str
    size: int = 1
    min_nodes: int = 0
    max_nodes: int | None = None
    buffer_nodes: int = 0              # spare, while there is work at all
    scaledown_window_ms: int = 60_000
    inputs_per_cluster: int = 1        # `max_inputs` of @modal.concurrent


@dataclass(frozen=True, slots=True)
class Member:
    """One cluster of the pool, started or still waiting for nodes."""

    cluster_id: str
    open_inputs: int = 0
    idle_since_ms: int | None = None   # None: it has work, or has not started
    started: bool = True
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """`gangs` new requests, of which `warm` are for no input: they wait behind everybody. `end` and `withdraw`: cluster ids.

    `served`: inputs that the clusters which are up, or on their way, have places for.
    """

    gangs: int = 0
    warm: int = 0
    served: int = 0
    end: tuple[str, ...] = ()
    withdraw: tuple[str, ...] = ()     # gangs that wait for nodes and are needed no more


def check_pool(pool: Pool) -> str:
    """What is wrong with the settings, as one sentence for the user; "" when nothing is."""
    counts = {"min_containers": pool.min_nodes, "max_containers": pool.max_nodes or 0, "buffer_containers": pool.buffer_nodes}
    for name, value in counts.items():
        if value % pool.size:
            return f"{name}={value} counts nodes and must be a multiple of {pool.size}, the cluster's size"
    if pool.max_nodes is not None and pool.max_nodes < pool.min_nodes:
        return f"max_containers={pool.max_nodes} is less than min_containers={pool.min_nodes}"
    return ""


def wanted(pool: Pool, members: Iterable[Member], waiting_inputs: int, now_ms: int) -> Wanted:
    """The difference between what there is and what there should be.

    Inputs that wait are first matched with clusters that are up and have a place, then with gangs on their way: a burst is not
    answered twice. A cluster is ended only when it has been idle for the whole window, so a gap between two calls does not flap.
    """
    alive = sorted((m for m in members if not m.ending), key=lambda m: m.cluster_id)
    up = [m for m in alive if m.started]
    coming = [m for m in alive if not m.started]
    places = sum(max(0, pool.inputs_per_cluster - m.open_inputs) for m in up)
    unserved = max(0, waiting_inputs - places)
    for_inputs = -(-unserved // pool.inputs_per_cluster)
    busy = sum(1 for m in up if m.idle_since_ms is None)
    active = busy > 0 or waiting_inputs > 0
    needed = min(len(up), busy + -(-min(places, waiting_inputs) // pool.inputs_per_cluster)) + for_inputs
    target = max(needed + (pool.buffer_nodes // pool.size if active else 0), pool.min_nodes // pool.size)
    if pool.max_nodes is not None:
        target = min(target, pool.max_nodes // pool.size)
    short = target - len(alive)
    if short > 0:
        gangs = min(short, max(0, for_inputs - len(coming)))
        return Wanted(short, short - gangs, places + len(coming) * pool.inputs_per_cluster)
    return _fewer(pool, up, coming, target, -short, now_ms)


def _fewer(pool: Pool, up: list[Member], coming: list[Member], target: int, over: int, now_ms: int) -> Wanted:
    """First gangs that have no nodes yet, the newest first; then clusters idle beyond the window, the longest idle first."""
    withdraw = [m.cluster_id for m in reversed(coming)][:over]
    over -= len(withdraw)
    idle = [m for m in up if m.idle_since_ms is not None and now_ms - m.idle_since_ms >= pool.scaledown_window_ms]
    idle.sort(key=lambda m: (m.idle_since_ms or 0, m.cluster_id))
    return Wanted(end=tuple(m.cluster_id for m in idle[:over]), withdraw=tuple(withdraw))


def next_look_ms(pool: Pool, members: Iterable[Member]) -> int | None:
    """When an idle cluster's window ends: the time of the next look if nothing else happens. None: nothing to wait for."""
    ends = [m.idle_since_ms + pool.scaledown_window_ms for m in members if m.idle_since_ms is not None and not m.ending]
    return min(ends, default=None)
