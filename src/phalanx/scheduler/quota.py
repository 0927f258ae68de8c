"""Quotas: what a workspace may hold in nodes and GPUs, what it may borrow in its cohort, and what may be taken back from borrowers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from phalanx.model.fleet import Hold
from phalanx.model.gpus import ANY, GpuChoice, accepted_types
from phalanx.model.plan import Quota, Request
from phalanx.model.reasons import Reason, ReasonCode, Wish, WishKind


class Quotas:
    """Counted while one plan is made: whole nodes, and GPUs by type whoever has them. A workspace without a quota is not limited."""

    def __init__(self, quotas: Iterable[Quota], used: Mapping[str, int], holds: Iterable[Hold] = (), types: Iterable[str] = ()) -> None:
        """`used`: nodes by workspace. `holds` and the GPU `types` of the fleet are read only where a quota is in GPUs."""
        self._quotas = {q.workspace: q for q in quotas}
        self._used = {name: used.get(name, 0) for name in {*used, *self._quotas}}
        self._cohort_limit: dict[str, int] = {}
        self._cohort_used: dict[str, int] = {}
        self._gpu_limits = {(q.workspace, kind): most for q in self._quotas.values() for kind, most in q.gpus}
        self._gpus: dict[tuple[str, str], int] = {}
        self._types: frozenset[str] = frozenset()
        if self._gpu_limits:
            self._types = frozenset(types)
            for hold in holds:
                self._add_gpus(hold, 1)
        for quota in self._quotas.values():
            if quota.cohort:
                self._cohort_limit[quota.cohort] = self._cohort_limit.get(quota.cohort, 0) + quota.nodes
                self._cohort_used[quota.cohort] = self._cohort_used.get(quota.cohort, 0) + self._used[quota.workspace]

    def refusal(self, request: Request) -> Reason | None:
        """Why the request may not start, or None."""
        quota = self._quotas.get(request.workspace)
        if quota is None:
            return None
        return (self._over_nodes(quota, request) if request.ask.whole else None) or self._over_gpus(quota, request)

    def _over_nodes(self, quota: Quota, request: Request) -> Reason | None:
        used = self._used[request.workspace]
        own = quota.nodes if not quota.cohort else None if quota.borrow is None else quota.nodes + quota.borrow
        if own is not None and used + request.size > own:
            return _over(request, request.workspace, used, own)
        if quota.cohort:
            limit, together = self._cohort_limit[quota.cohort], self._cohort_used[quota.cohort]
            if together + request.size > limit:
                return _over(request, request.workspace, together, limit, quota.cohort)
        return None

    def narrowed(self, request: Request) -> Request:
        """The request without the GPU types of which its workspace has no quota left; as it is where none is left, to be refused."""
        quota = self._quotas.get(request.workspace)
        if quota is None or not quota.gpus:
            return request
        choices: list[GpuChoice] = []
        for choice in request.ask.gpus:
            types = self._types_for(choice)
            left = [kind for kind in types if self._gpus_left(request, kind, choice.count)]
            choices += [choice] if len(left) == len(types) else [GpuChoice(kind, choice.count, True) for kind in left]
        if not choices or tuple(choices) == request.ask.gpus:
            return request
        return replace(request, ask=replace(request.ask, gpus=tuple(choices)))

    def take(self, request: Request, gpu_type: str = "", gpus: int = 0) -> None:
        """Count a start, with the GPUs it gets on each node where that is known."""
        if request.ask.whole:
            self._add(request.workspace, request.size)
        if gpu_type and self._gpu_limits:
            key = (request.workspace, gpu_type)
            self._gpus[key] = self._gpus.get(key, 0) + request.size * gpus

    def untake(self, request: Request) -> None:
        """Take a start back."""
        if request.ask.whole:
            self._add(request.workspace, -request.size)

    def give(self, hold: Hold, sign: int = 1) -> None:
        """Uncount a victim in a what-if; with sign -1 count it again."""
        if hold.whole:
            self._add(hold.workspace, -sign * len(hold.node_ids))
        self._add_gpus(hold, -sign)

    def may_reclaim_any(self, request: Request) -> bool:
        """The request stays within its own quota, and there is a cohort that may have lent it."""
        mine = self._quotas.get(request.workspace)
        return mine is not None and bool(mine.cohort) and self._used[request.workspace] + request.size <= mine.nodes

    def borrowers(self, request: Request) -> frozenset[str]:
        """The workspaces of its cohort that hold more than their own quota, while the request stays within its own: it may stop theirs."""
        if not self.may_reclaim_any(request):
            return frozenset()
        mine = self._quotas[request.workspace]
        others = (q for q in self._quotas.values() if q.cohort == mine.cohort and q is not mine)
        return frozenset(q.workspace for q in others if self._used[q.workspace] > q.nodes)

    def is_lender(self, request: Request, hold: Hold) -> bool:
        """The hold is of another workspace of the cohort: what it gives up for a borrower it would take back."""
        mine, theirs = self._quotas.get(request.workspace), self._quotas.get(hold.workspace)
        if mine is None or theirs is None or mine is theirs or not mine.cohort or mine.cohort != theirs.cohort:
            return False
        return not (self.may_reclaim_any(request) and self._used[theirs.workspace] > theirs.nodes)

    def free_at(self, request: Request, ends: Iterable[tuple[int, Hold]]) -> int | None:
        """When the holds that end first have given enough quota back. `ends` sorted. None: never, as far as is known."""
        after = self.copy()
        for end_ms, hold in ends:
            if hold.workspace in after._quotas:
                after.give(hold)
                if after.refusal(request) is None:
                    return end_ms
        return None

    def copy(self) -> Quotas:
        """For a what-if."""
        other = Quotas((), {})
        other._quotas, other._cohort_limit = self._quotas, self._cohort_limit
        other._used, other._cohort_used = dict(self._used), dict(self._cohort_used)
        other._gpu_limits, other._gpus, other._types = self._gpu_limits, dict(self._gpus), self._types
        return other

    def _gpus_left(self, request: Request, kind: str, count: int) -> bool:
        if kind != ANY and kind not in self._types and ANY not in self._types:
            return False        # an upgrade that this fleet has none of
        limit = self._gpu_limits.get((request.workspace, kind))
        return limit is None or self._gpus.get((request.workspace, kind), 0) + request.size * count <= limit

    def _types_for(self, choice: GpuChoice) -> tuple[str, ...]:
        """"any" is what the fleet has."""
        types = accepted_types(choice)
        return tuple(sorted(self._types - {"", ANY})) or types if types == (ANY,) else types

    def _over_gpus(self, quota: Quota, request: Request) -> Reason | None:
        """All types that it would take are used up: told with the first of them."""
        if not quota.gpus or not request.ask.gpus:
            return None
        wanted = [(kind, choice.count) for choice in request.ask.gpus for kind in self._types_for(choice)]
        limited = [(kind, count) for kind, count in wanted if (request.workspace, kind) in self._gpu_limits]
        if not limited or any(self._gpus_left(request, kind, count) for kind, count in wanted):
            return None
        kind, count = limited[0]
        used, limit, need = self._gpus.get((request.workspace, kind), 0), self._gpu_limits[request.workspace, kind], request.size * count
        wish = Wish(WishKind.ASK_CHANGED, 0, f"{used + need - limit} more {kind} of quota for {request.workspace}")
        numbers = (("workspace", request.workspace), ("used", used), ("limit", limit), ("need", need), ("gpu_type", kind))
        return Reason(ReasonCode.QUOTA, numbers, None, wish)

    def _add_gpus(self, hold: Hold, sign: int) -> None:
        if hold.gpu_type and self._gpu_limits:
            key = (hold.workspace, hold.gpu_type)
            self._gpus[key] = self._gpus.get(key, 0) + sign * len(hold.node_ids) * hold.gpu_count

    def _add(self, workspace: str, nodes: int) -> None:
        self._used[workspace] = self._used.get(workspace, 0) + nodes
        quota = self._quotas.get(workspace)
        if quota is not None and quota.cohort:
            self._cohort_used[quota.cohort] += nodes


def _over(request: Request, workspace: str, used: int, limit: int, cohort: str = "") -> Reason:
    wish = Wish(WishKind.QUOTA_RAISED, used + request.size - limit, workspace)
    numbers: tuple[tuple[str, int | str], ...] = (("workspace", workspace), ("used", used), ("limit", limit), ("need", request.size))
    return Reason(ReasonCode.QUOTA, (*numbers, ("cohort", cohort)) if cohort else numbers, None, wish)
