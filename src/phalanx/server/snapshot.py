"""What the planner sees: nodes, holds and requests, made from the world at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.core import options
from phalanx.model.cluster import Member
from phalanx.model.fleet import Hold, Node, NodeState
from phalanx.model.gpus import GpuChoice
from phalanx.model.node import ByHand, NodeRecord
from phalanx.model.plan import Ask, Request, Where
from phalanx.model.work import Function
from phalanx.server.pool import Pool
from phalanx.server.quotas import queue_of

if TYPE_CHECKING:
    from phalanx.core.gang import Gang

_BY_HAND: dict[str, NodeState] = {
    ByHand.SERVING: NodeState.CORDONED, ByHand.CORDONED: NodeState.CORDONED,
    ByHand.DRAINING: NodeState.DRAINING, ByHand.DRAINED: NodeState.DRAINED,
}  # fmt: skip


def node_of(record: NodeRecord, connected: bool) -> Node:
    """The planner's view of a node."""
    state, why = NodeState.UP, ""
    if record.cordoned or record.by_hand != ByHand.SERVING:
        state, why = _BY_HAND[record.by_hand], f"by hand: {record.cordoned}" if record.cordoned else "by hand"
    if record.unschedulable:
        state, why = NodeState.DRAINING, f"{record.unschedulable}; {why}" if why else record.unschedulable
    if not connected:
        state, why = NodeState.DOWN, "its agent is away"
    return Node(
        record.node_id, record.gpu_type, record.gpu_count, record.cpu_milli, record.memory_mib, simulated=record.simulated,
        rdma=record.rdma or record.simulated, region=record.region, zone=record.zone, network=record.network,
        block=record.block, rack=record.rack, fabric_id=record.fabric_id, shared_only=record.shared_only,
        state=state, state_reason=why,
    )  # fmt: skip


def ask_of(function: Function) -> Ask:
    gpus = tuple(GpuChoice(str(kind), int(str(count)), bool(exact)) for kind, count, exact in function.gpus)
    return Ask(function.clustered, function.cpu_milli, function.memory_mib, function.disk_mib, gpus)


def priority_of(function: Function) -> int:
    """`experimental_options={"priority": 10}`; higher goes first."""
    try:
        return options.priority(function.options)
    except ValueError:      # of an older release, which did not refuse it
        return 0


def where_of(function: Function) -> Where:
    """The function's own wishes about places. "auto" is no wish."""
    return Where(
        tuple(function.region), (function.zone,) if function.zone else (), (function.cloud,) if function.cloud not in ("", "auto") else (),
        tuple(function.instance_types), efa_disabled=function.options.get("efa_disabled") == "True",
    )  # fmt: skip


def family_of(function: Function) -> str:
    """Functions of one name and size in other apps and earlier deploys are the same kind of work."""
    return f"{function.name}/{function.size}"


def request_of(
    function: Function, request_id: str, submitted_ms: int, pool: Pool | None = None, warm: bool = False, now_ms: int = 0,
    excluded: frozenset[str] = frozenset(),
) -> Request:
    """A wish for one more cluster of a function. `excluded`: nodes that its input's earlier attempts speak against."""
    if pool is not None:
        excluded |= {node for node, until in pool.refused.items() if until > now_ms}
    rests = pool is not None and pool.resting_until_ms > now_ms
    return Request(
        request_id, function.size, ask_of(function), submitted_ms, queue_of(function), function.function_id, where=where_of(function),
        rdma=function.rdma, fabric_size=max(function.fabric_size, 1), excluded_nodes=excluded, timeout_ms=function.timeout_s * 1000,
        not_before_ms=max(pool.not_before_ms, pool.resting_until_ms) if pool else 0, warm=warm,
        backoff_why=pool.resting_for if pool and rests else "", priority=priority_of(function),
    )  # fmt: skip


def is_spent(gang: Gang, function: Function) -> bool:
    """Single use, and its input is decided: it is about to leave by itself, no place for another input and no idle cluster."""
    return function.single_use and gang.took_inputs and not gang.open


def goes_on_with_inputs(gang: Gang, function: Function) -> bool:
    """Does it take the next input of its function when it is done with this one?"""
    return gang.is_counted and not function.single_use


def hold_of(gang: Gang, function: Function, members: list[Member]) -> Hold:
    """What a gang has of its nodes, until nothing of it remains."""
    gpus = int(str(function.gpus[gang.assignment.gpu_choice][1])) if function.gpus else 0
    return Hold(
        gang.assignment.cluster_id, tuple(m.node_id for m in members), gang.assignment.clustered, function.cpu_milli,
        function.memory_mib, gpus, since_ms=gang.assignment.created_ms, workspace=queue_of(function),
        function_id=function.function_id, priority=priority_of(function), gpu_type=gang.assignment.gpu_type,
    )  # fmt: skip
