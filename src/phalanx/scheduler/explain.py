"""For one waiting request: the reason, its place, who is ahead and what they hold, the earliest start, and what would start it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.model.plan import Plan, Policy, Reason, Request, Snapshot
from phalanx.model.reasons import duration, sentence, wish_sentence
from phalanx.scheduler.fit import fabric_of, options_of, serves
from phalanx.scheduler.plan import plan


@dataclass(frozen=True, slots=True)
class Explanation:
    """Data; `lines` makes the text."""

    request: Request
    reason: Reason | None              # None: it starts now
    position: int                      # 1 is first
    ahead: tuple[tuple[str, int], ...]     # waiting requests before it and the nodes they ask
    holders: tuple[tuple[str, int, int | None], ...]     # who holds nodes it could use: name, nodes, expected end
    promised_ms: int | None = None

    def lines(self, now_ms: int) -> list[str]:
        """For people."""
        if self.reason is None:
            return [f"{self.request.request_id} starts now"]
        out = [sentence(self.reason, now_ms), f"position {self.position}"]
        if self.ahead:
            shown = ", ".join(f"{name} ({nodes} node{'' if nodes == 1 else 's'})" for name, nodes in self.ahead[:5])
            out.append(f"ahead: {shown}" + (f" and {len(self.ahead) - 5} more" if len(self.ahead) > 5 else ""))
        for name, nodes, end in self.holders[:5]:
            left = "no known end" if end is None else "overdue" if end <= now_ms else f"ends in {duration(end - now_ms)}"
            out.append(f"{name} holds {nodes} node{'' if nodes == 1 else 's'}, {left}")
        if self.promised_ms is not None:
            out.append(f"promised to start within {duration(self.promised_ms - now_ms)}")
        if self.reason.would_start_if is not None:
            out.append(f"would start now with: {wish_sentence(self.reason.would_start_if)}")
        return out


def explain(snapshot: Snapshot, made: Plan, request_id: str) -> Explanation:
    """Raises KeyError when nothing of that id is pending in the snapshot."""
    requests = {r.request_id: r for r in snapshot.pending}
    request = requests[request_id]
    reasons = {w.request_id: w.reason for w in made.waits}
    place = made.order.index(request_id)
    ahead = tuple((name, requests[name].size) for name in made.order[:place] if name in reasons)
    promised = {r.request_id: r.start_ms for r in made.reserve}
    types = {n.gpu_type for n in snapshot.nodes}
    useful = {n.node_id for n in snapshot.nodes if any(serves(n, request, o) for o in options_of(request.ask, types))}
    counts = ((h.holder_id, sum(1 for n in h.node_ids if n in useful), h.ends_ms) for h in snapshot.holds)
    holders = sorted((c for c in counts if c[1]), key=lambda c: (c[2] is None, c[2] or 0, c[0]))
    return Explanation(request, reasons.get(request_id), len(ahead) + 1, ahead, tuple(holders), promised.get(request_id))


def what_if_more(snapshot: Snapshot, policy: Policy, request_id: str, nodes: int) -> Explanation:
    """The same with so many more nodes, on the fabric that suits the request best. Raises KeyError; ValueError if no node suits it."""
    request = next((r for r in snapshot.pending if r.request_id == request_id), None)
    if request is None:
        raise KeyError(request_id)
    types = {n.gpu_type for n in snapshot.nodes}
    suited = [n for n in snapshot.nodes if any(serves(n, request, o) for o in options_of(request.ask, types))]
    if not suited:
        raise ValueError(f"no node of the fleet could run {request_id}: there is nothing to have more of")
    sizes: dict[str, int] = {}
    for node in suited:
        sizes[fabric_of(node)] = sizes.get(fabric_of(node), 0) + 1
    largest = max(sorted(sizes), key=lambda name: sizes[name])
    like = min((n for n in suited if fabric_of(n) == largest), key=lambda n: n.node_id)
    more = tuple(replace(like, node_id=f"what-if-{i:04}", rack="what-if", fabric_id=f"what-if-{like.fabric_id}") for i in range(nodes))
    changed = replace(snapshot, nodes=snapshot.nodes + more)
    return explain(changed, plan(changed, policy), request_id)
