"""Quotas in nodes: what a workspace may hold, what it may borrow in its cohort, and what may be taken back from borrowers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.model.fleet import Hold
from phalanx.model.plan import Quota, Request
from phalanx.model.reasons import Reason, ReasonCode, Wish, WishKind


class Quotas:
    """Counted while one plan is made. Only whole nodes count; a workspace without a quota is not limited."""

    def __init__(self, quotas: Iterable[Quota], used: Mapping[str, int]) -> None:
        self._quotas = {q.workspace: q for q in quotas}
        self._used = {name: used.get(name, 0) for name in {*used, *self._quotas}}
        self._cohort_limit: dict[str, int] = {}
        self._cohort_used: dict[str, int] = {}
        for quota in self._quotas.values():
            if quota.cohort:
                self._cohort_limit[quota.cohort] = self._cohort_limit.get(quota.cohort, 0) + quota.nodes
                self._cohort_used[quota.cohort] = self._cohort_used.get(quota.cohort, 0) + self._used[quota.workspace]

    def refusal(self, request: Request) -> Reason | None:
        """Why the request may not start, or None."""
        quota = self._quotas.get(request.workspace)
        if quota is None or not request.ask.whole:
            return None
        used = self._used[request.workspace]
        own = quota.nodes if not quota.cohort else None if quota.borrow is None else quota.nodes + quota.borrow
        if own is not None and used + request.size > own:
            return _over(request, request.workspace, used, own)
        if quota.cohort:
            limit, together = self._cohort_limit[quota.cohort], self._cohort_used[quota.cohort]
            if together + request.size > limit:
                return _over(request, request.workspace, together, limit, quota.cohort)
        return None

    def take(self, request: Request) -> None:
        """Count a start."""
        if request.ask.whole:
            self._add(request.workspace, request.size)

    def untake(self, request: Request) -> None:
        """Take a start back."""
        if request.ask.whole:
            self._add(request.workspace, -request.size)

    def give(self, hold: Hold, sign: int = 1) -> None:
        """Uncount a victim in a what-if; with sign -1 count it again."""
        if hold.whole:
            self._add(hold.workspace, -sign * len(hold.node_ids))

    def may_reclaim_any(self, request: Request) -> bool:
        """The request stays within its own quota, and there is a cohort that may have lent it."""
        mine = self._quotas.get(request.workspace)
        return mine is not None and bool(mine.cohort) and self._used[request.workspace] + request.size <= mine.nodes

    def may_reclaim(self, request: Request, hold: Hold) -> bool:
        """The request stays within its own quota, and the hold is of a workspace of the cohort that has borrowed."""
        mine, theirs = self._quotas.get(request.workspace), self._quotas.get(hold.workspace)
        if mine is None or theirs is None or not mine.cohort or mine.cohort != theirs.cohort or mine is theirs:
            return False
        return self.may_reclaim_any(request) and self._used[hold.workspace] > theirs.nodes

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
        return other

    def _add(self, workspace: str, nodes: int) -> None:
        self._used[workspace] = self._used.get(workspace, 0) + nodes
        quota = self._quotas.get(workspace)
        if quota is not None and quota.cohort:
            self._cohort_used[quota.cohort] += nodes


def _over(request: Request, workspace: str, used: int, limit: int, cohort: str = "") -> Reason:
    wish = Wish(WishKind.QUOTA_RAISED, used + request.size - limit, workspace)
    numbers: tuple[tuple[str, int | str], ...] = (("workspace", workspace), ("used", used), ("limit", limit), ("need", request.size))
    return Reason(ReasonCode.QUOTA, (*numbers, ("cohort", cohort)) if cohort else numbers, None, wish)
