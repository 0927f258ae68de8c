"""What a function may ask for, checked once when it is created: every sentence names the value, what is allowed, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phalanx.core import options
from phalanx.core.gpu import RDMA_TYPES, allows_rdma, counts_on_nodes
from phalanx.model.fleet import Node
from phalanx.model.gpus import ANY, GpuChoice
from phalanx.model.work import Function

MAX_SCALEDOWN_S = 3600
MAX_DEFINITION_BYTES = 16 * 2**20   # what the client itself allows for a serialized function
MAX_DISK_MIB = 3 * 2**20            # 3 TiB
MAX_RETRIES = 10


@dataclass(frozen=True)
class Rules:
    """What this control plane's owner allows, and what the fleet has: every node it knows, down ones too."""

    allow_cpu_clusters: bool = False
    max_timeout_s: int = 24 * 60 * 60           # 0: no limit
    fleet: tuple[Node, ...] = ()


def complaints(function: Function, rules: Rules, *, is_web: bool = False, packaged_bytes: int = 0) -> list[str]:
    """Everything that is wrong with a function, in sentences; empty when it may be created."""
    gpus = [GpuChoice(str(kind), int(str(count)), bool(exact)) for kind, count, exact in function.gpus]
    found = [
        *_times(function, rules),
        *_limits(function, packaged_bytes),
        *_containers(function, function.min_nodes, function.max_nodes, function.buffer_nodes),
        *_gpu_counts(function, gpus, rules.fleet),
    ]
    if function.clustered:
        found += _cluster(function, gpus, rules, is_web)
    elif function.fabric_size:
        asked = f"fabric_size={function.fabric_size} on '{function.name}'"
        found.append(f"{asked}: only a cluster has one; add @modal.clustered or leave it out")
    if function.rdma and gpus:
        found += _rdma(function, gpus, rules.fleet)
    return found


def scaling_complaints(function: Function, min_nodes: int, max_nodes: int, buffer_nodes: int, scaledown_s: int) -> list[str]:
    """The same for autoscaler settings that are changed later."""
    return [*_containers(function, min_nodes, max_nodes, buffer_nodes), *_scaledown(function.name, scaledown_s)]


def _times(function: Function, rules: Rules) -> Iterator[str]:
    times = {"timeout": function.timeout_s}
    if function.startup_timeout_s not in (0, function.timeout_s):   # a client that is told none sends the other
        times["startup_timeout"] = function.startup_timeout_s
    most = rules.max_timeout_s
    for what, seconds in times.items():
        if seconds < 1 or (most and seconds > most):
            allowed = f"from 1 to {most} seconds ({most / 3600:g} hours) are allowed" if most else "at least 1 second is wanted"
            advice = "split longer work into several calls; the fleet's owner can allow more (max_timeout_s in the configuration)"
            yield f"{what}={seconds} on '{function.name}': {allowed}" + (f"; {advice}" if most else "")
    yield from (f"experimental_options on '{function.name}': {complaint}" for complaint in options.complaints(function.options))


def _limits(function: Function, packaged_bytes: int) -> Iterator[str]:
    name = function.name
    yield from _scaledown(name, function.scaledown_s)
    if function.retries > MAX_RETRIES:
        yield f"retries={function.retries} on '{name}': at most {MAX_RETRIES} are allowed"
    if function.disk_mib > MAX_DISK_MIB:
        yield f"ephemeral_disk={function.disk_mib} on '{name}': at most {MAX_DISK_MIB} MiB (3 TiB) are allowed"
    if function.cpu_limit_milli and function.cpu_limit_milli < function.cpu_milli:
        asked = f"cpu=({function.cpu_milli / 1000:g}, {function.cpu_limit_milli / 1000:g})"
        yield f"{asked} on '{name}': the limit must not be below the request"
    if function.memory_limit_mib and function.memory_limit_mib < function.memory_mib:
        yield f"memory=({function.memory_mib}, {function.memory_limit_mib}) on '{name}': the limit must not be below the request"
    if packaged_bytes > MAX_DEFINITION_BYTES:
        yield (
            f"'{name}' is {packaged_bytes / 2**20:.1f} MiB when packaged: at most {MAX_DEFINITION_BYTES // 2**20} MiB are allowed; "
            "pass large data as an argument or a file instead of a global variable"
        )


def _scaledown(name: str, seconds: int) -> Iterator[str]:
    if not 1 <= seconds <= MAX_SCALEDOWN_S:
        yield f"scaledown_window={seconds} on '{name}': from 1 to {MAX_SCALEDOWN_S} seconds are allowed"


def _containers(function: Function, min_nodes: int, max_nodes: int, buffer_nodes: int) -> Iterator[str]:
    name, size = function.name, function.size if function.clustered else 1
    for setting, value in (("min_containers", min_nodes), ("max_containers", max_nodes), ("buffer_containers", buffer_nodes)):
        if size > 1 and value % size:
            below = value - value % size
            nearest = f"{below} or {below + size}" if below else f"{size}"
            yield f"{setting}={value} on '{name}': must be a multiple of {size}, since a cluster is {size} containers; use {nearest}"
    if max_nodes and max_nodes < min_nodes:
        yield f"max_containers={max_nodes} on '{name}': must not be below min_containers={min_nodes}"


def _gpu_counts(function: Function, gpus: Iterable[GpuChoice], fleet: tuple[Node, ...]) -> Iterator[str]:
    for choice in gpus:
        if fleet and not any(node.types_for(choice) for node in fleet):
            continue    # can_ever_fit says what there is instead: counts of other fleets' nodes would only lead to that sentence
        counts = counts_on_nodes(choice, fleet)
        asked = f"gpu='{_written(choice)}:{choice.count}' on '{function.name}'"
        have = f"nodes with {choice.gpu_type} have {_either(counts)}" if choice.gpu_type != ANY else f"nodes have {_either(counts)}"
        if function.clustered and choice.count not in counts:
            uses = _either([f"gpu='{_written(choice)}:{count}'" for count in counts])
            yield f"{asked}: a cluster takes every GPU of its nodes, and {have}; use {uses}"
        elif choice.count > counts[-1]:
            yield f"{asked}: {have}, and one container runs on one node; use at most {counts[-1]}, or @modal.clustered for more nodes"


def _cluster(function: Function, gpus: list[GpuChoice], rules: Rules, is_web: bool) -> Iterator[str]:
    name = function.name
    if not gpus and not rules.allow_cpu_clusters:
        yield (
            f"'{name}' is a cluster of {function.size} without a GPU: clusters take whole GPU nodes, so say which, as in gpu='H100:8'. "
            "The owner of this fleet can allow CPU-only clusters (allow_cpu_clusters in the configuration)"
        )
    if is_web:
        yield f"'{name}' is a web function with @modal.clustered: these can't be clustered; call the cluster from a plain web function"
    if function.is_class and len(function.methods) > 1:
        has = f"{len(function.methods)} methods ({', '.join(sorted(function.methods))})"
        yield f"'{name.removesuffix('.*')}' is clustered and has {has}: a clustered class has exactly one"
    if function.batch_max_size:
        yield f"'{name}' is clustered and batched: dynamic batching is not for clusters; take @modal.batched away"
    if function.fabric_size and function.size % function.fabric_size:
        divisors = [n for n in range(1, function.size + 1) if function.size % n == 0]
        yield f"fabric_size={function.fabric_size} on '{name}': must divide the cluster's size {function.size}; use {_either(divisors)}"


def _rdma(function: Function, gpus: list[GpuChoice], fleet: tuple[Node, ...]) -> Iterator[str]:
    without = [choice for choice in gpus if not allows_rdma(choice, fleet)]
    if without:
        types = " or ".join(choice.gpu_type for choice in without)
        known = ", ".join(t for t in RDMA_TYPES if t != ANY and not t.endswith("+"))
        yield (
            f"rdma=True on '{function.name}': no machine with {types} has RDMA; use one of {known}, "
            "or leave rdma out: private networking works without"
        )


def _written(choice: GpuChoice) -> str:
    return choice.gpu_type + ("!" if choice.exact else "")


def _either(values: Iterable[object]) -> str:
    *most, last = [str(value) for value in values]
    return f"{', '.join(most)} or {last}" if most else last
