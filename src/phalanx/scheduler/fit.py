"""May this request run on that node at all? Facts only, nothing about what is free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from phalanx.model.fleet import Node, Offer
from phalanx.model.gpus import ANY, GpuChoice, accepted_types
from phalanx.model.plan import Ask, Request
from phalanx.model.reasons import Reason, ReasonCode, Wish, WishKind


class Option(NamedTuple):
    """One way to serve an ask: `count` GPUs of exactly this node type."""

    gpu_type: str
    gpus: int


NO_GPU = Option("", 0)


def fabric_of(node: Node) -> str:
    """The name of the fabric a gang must not leave: cloud, region, zone and network."""
    return "/".join((node.cloud, node.region, node.zone, node.network))


def options_of(ask: Ask, types_in_fleet: Iterable[str]) -> tuple[Option, ...]:
    """All ways to serve an ask, most preferred first."""
    if not ask.gpus:
        return (NO_GPU,)
    found: dict[Option, None] = {}
    for choice in ask.gpus:
        wanted = accepted_types(choice)
        names = sorted(set(types_in_fleet) - {""}) if wanted == (ANY,) else wanted
        for name in names:
            found[Option(name, choice.count)] = None
    return tuple(found)


def gpus_match(node: Node, option: Option, whole: bool) -> bool:
    """A gang takes every GPU of a node, so the count must be the node's own; a share may be smaller."""
    if whole and node.shared_only:
        return False
    if option == NO_GPU:
        return True
    have = node.gpus_of(option.gpu_type)
    return have == option.gpus if whole else have >= option.gpus


def place_matches(node: Node, request: Request) -> bool:
    """Region, zone, cloud, instance type, fabric technology."""
    where = request.where
    if request.rdma and not (node.rdma or node.simulated):
        return False
    if where.efa_disabled and node.efa:
        return False
    if where.regions and not any(node.region == r or node.region.startswith(r + "-") for r in where.regions):
        return False
    if where.zones and node.zone not in where.zones:
        return False
    if where.clouds and node.cloud not in where.clouds:
        return False
    return not where.instance_types or node.instance_type in where.instance_types


def size_matches(node: Node, ask: Ask) -> bool:
    """CPU, memory and disk of the empty node. An unknown disk (0) is taken to be enough."""
    return ask.cpu_milli <= node.cpu_milli and ask.memory_mib <= node.memory_mib and (not node.disk_mib or ask.disk_mib <= node.disk_mib)


def serves(node: Node, request: Request, option: Option) -> bool:
    """Could this node, empty and in service, carry one rank of the request?"""
    return gpus_match(node, option, request.ask.whole) and size_matches(node, request.ask) and place_matches(node, request)


def describe_each(ask: Ask, option: Option | None = None) -> str:
    """"8 H100" or "2 CPU, 4096 MiB": what is wanted of each node, for people."""
    if ask.gpus:
        return " or ".join(dict.fromkeys(str(choice) for choice in ask.gpus)) if option is None else f"{option.gpus} {option.gpu_type}"
    parts = []
    if ask.cpu_milli:
        parts.append(f"{_cpus(ask.cpu_milli)} CPU")
    if ask.memory_mib:
        parts.append(f"{ask.memory_mib} MiB")
    return ", ".join(parts)


def can_ever_fit(request: Request, nodes: Iterable[Node], offers: Iterable[Offer] = ()) -> Reason | None:
    """None when the fleet, with its down nodes back, everything running gone and all offers taken, could run the request.

    Else the refusal, with the numbers that tell the user what would have been possible.
    """
    if request.size % request.fabric_size:
        text = f"fabric_size={request.fabric_size} must divide the cluster's size, {request.size}"
        return _impossible(text, "another fabric_size", size=request.size)
    fleet = list(nodes)
    offered = list(offers)
    if any(offer.node is None for offer in offered):
        return None     # the engine can't say what it supplies: unknown means unlimited
    candidates = fleet + [offer.node for offer in offered if offer.node is not None]
    if request.ask.whole:
        candidates = [node for node in candidates if not node.shared_only]
    problem = _misfit(request, candidates)
    if problem is not None:
        return problem
    if _largest_gang(request, fleet, offered) >= (request.size if request.ask.whole else 1):
        return None
    return _too_many(request, fleet, offered)


def _misfit(request: Request, candidates: list[Node]) -> Reason | None:
    """No single node can carry one rank: say which part of the ask is too large."""
    ask = request.ask
    types = {node.gpu_type for node in candidates}
    options = options_of(ask, types)
    if any(serves(node, request, option) for option in options for node in candidates):
        return None
    if not candidates:
        return _impossible("the fleet has no nodes", "")
    with_gpus = [n for n in candidates if any(gpus_match(n, option, ask.whole) for option in options)]
    if not with_gpus:
        return _wrong_gpus(ask, candidates)
    placed = [n for n in with_gpus if place_matches(n, request)]
    if not placed:
        return _impossible(f"no node with what you ask is where you ask it: {_where_text(request)}", "another place")
    cpu = max(n.cpu_milli for n in placed)
    if cpu < ask.cpu_milli:
        text = f"largest node has {_cpus(cpu)} CPU, you ask {_cpus(ask.cpu_milli)}"
        return _impossible(text, f"cpu={_cpus(cpu)} or less", ask_cpu_milli=ask.cpu_milli, largest=cpu)
    memory = max(n.memory_mib for n in placed)
    if memory < ask.memory_mib:
        text = f"largest node has {memory} MiB of memory, you ask {ask.memory_mib}"
        return _impossible(text, f"memory={memory} or less", ask_memory_mib=ask.memory_mib, largest=memory)
    disk = max(n.disk_mib for n in placed)
    if disk < ask.disk_mib and all(n.disk_mib for n in placed):
        return _impossible(f"largest node has {disk} MiB of disk, you ask {ask.disk_mib}", f"ephemeral_disk={disk} or less", largest=disk)
    return _impossible("no single node has the CPU, memory and disk you ask together", "a smaller ask")


def _wrong_gpus(ask: Ask, candidates: list[Node]) -> Reason:
    """Case 16: `H100:4` on nodes with 8 is told which counts there are."""
    lines = []
    for choice in ask.gpus:
        counts = sorted({n.gpus_of(t) for n in candidates for t in n.types_for(choice)} - {0})
        if counts:
            name = f"{choice.gpu_type}{'!' if choice.exact else ''}"
            allowed = " or ".join(f"{name}:{count}" for count in counts)
            rule = "a cluster takes every GPU of a node; use" if ask.whole else "at most"
            lines.append(f"{name}:{choice.count} asked, nodes with {choice.gpu_type} have {_join(counts)}; {rule} {allowed}")
        else:
            have = sorted({n.gpu_type for n in candidates} - {""})
            lines.append(f"no node has {choice.gpu_type}; this fleet has {', '.join(have) if have else 'no GPUs'}{_upgrade(choice, have)}")
    return _impossible("; ".join(dict.fromkeys(lines)), "another gpu=")


def _upgrade(choice: GpuChoice, have: list[str]) -> str:
    """"H100!" where there are H200: leaving out the "!" would do."""
    others = set(accepted_types(replace(choice, exact=False))).intersection(have) if choice.exact else set()
    return f", on which {choice.gpu_type} without '!' runs" if others else ""


def _largest_gang(request: Request, fleet: list[Node], offers: list[Offer]) -> int:
    """The most nodes one gang could get: one fabric, one GPU type, whole blocks."""
    best = 0
    everything = fleet + [offer.node for offer in offers if offer.node is not None]
    for option in options_of(request.ask, {n.gpu_type for n in everything}):
        fabrics: dict[str, dict[str, int]] = {}
        for node in fleet:
            if serves(node, request, option):
                domain = node.fabric_id if request.fabric_size > 1 else ""
                counts = fabrics.setdefault(fabric_of(node), {})
                counts[domain] = counts.get(domain, 0) + 1
        for counts in fabrics.values():
            best = max(best, blocks_in(counts, request.fabric_size))
        for offer in offers:
            if offer.node is None or not serves(offer.node, request, option):
                continue
            if offer.most is None:
                return request.size
            here = fabrics.get(fabric_of(offer.node), {})
            best = max(best, offer.most + blocks_in(here, request.fabric_size))
    return best


def fabric_warning(request: Request, nodes: Iterable[Node]) -> str:
    """A sentence when blocks of this size leave part of every NVLink domain unused: 8 on 18 nodes costs 4 points of utilisation and

    nearly triples the wait (reference simulator, NVL72 racks); 2, 3, 6 and 9 divide 18. "" when it divides, or there are no domains.
    """
    sizes: dict[tuple[str, str], int] = {}
    for node in nodes:
        if node.fabric_id:
            sizes[fabric_of(node), node.fabric_id] = sizes.get((fabric_of(node), node.fabric_id), 0) + 1
    if request.fabric_size <= 1 or not sizes:
        return ""
    usual = max(sorted(set(sizes.values())), key=lambda size: sum(1 for n in sizes.values() if n == size))
    if usual % request.fabric_size == 0:
        return ""
    better = [str(k) for k in range(2, usual + 1) if usual % k == 0]
    left = usual % request.fabric_size if request.fabric_size < usual else usual
    return f"fabric_size={request.fabric_size} leaves {left} of the {usual} nodes of an NVLink domain unused; {_join(better)} would not"


def blocks_in(free_of_domain: dict[str, int], fabric_size: int) -> int:
    """How many nodes whole blocks of `fabric_size` find room for. A node without an NVLink domain ("") can't be in a block."""
    if fabric_size <= 1:
        return sum(free_of_domain.values())
    return sum(count // fabric_size * fabric_size for domain, count in free_of_domain.items() if domain)


def _too_many(request: Request, fleet: list[Node], offers: list[Offer]) -> Reason:
    largest = _largest_gang(request, fleet, offers)
    each = describe_each(request.ask)
    blocks = f" in blocks of fabric_size={request.fabric_size}" if request.fabric_size > 1 else ""
    return _impossible(
        f"you ask {request.size} nodes{f' with {each}' if each else ''}{blocks} on one network, this fleet has at most {largest}",
        f"size={largest} or less" if largest else "a smaller fabric_size",
        need=request.size, largest=largest,
    )  # fmt: skip


def _impossible(why: str, change: str, **numbers: int) -> Reason:
    facts: tuple[tuple[str, int | str], ...] = (*sorted(numbers.items()), ("why", why))
    return Reason(ReasonCode.IMPOSSIBLE, facts, None, Wish(WishKind.ASK_CHANGED, 0, change) if change else None)


def _where_text(request: Request) -> str:
    where = request.where
    lists = (("region", where.regions), ("zone", where.zones), ("cloud", where.clouds), ("instance", where.instance_types))
    parts = [f"{name} {_join(values)}" for name, values in lists if values]
    if request.rdma:
        parts.append("with RDMA")
    if where.efa_disabled:
        parts.append("without EFA")
    return ", ".join(parts)


def _join(values: Iterable[object]) -> str:
    return " or ".join(str(value) for value in values)


def _cpus(milli: int) -> str:
    return f"{milli / 1000:g}"


