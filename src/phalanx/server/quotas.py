"""Whose quota a cluster's nodes count against, and the configuration's quotas as the planner takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.model.plan import NO_LIMIT, Quota
from phalanx.model.work import Function

Configured = Mapping[str, Mapping[str, Any]]


def queue_of(function: Function) -> str:
    """`experimental_options={"queue": "research"}`: whose quota its nodes count against; its environment otherwise."""
    return function.options.get("queue", "") or function.environment


def quotas_of(configured: Configured) -> tuple[Quota, ...]:
    """The configuration's `quotas`, for the planner. Without a cohort nothing is borrowed; "borrow" unset: all that others leave."""
    return tuple(
        Quota(
            name, quota.get("nodes", NO_LIMIT), quota.get("cohort", ""), quota.get("borrow"),
            tuple(sorted((kind.upper(), count) for kind, count in quota.get("gpus", {}).items())),
        )
        for name, quota in sorted(configured.items())
    )  # fmt: skip


def unknown_queue(function: Function, configured: Configured) -> str:
    """What is wrong with the queue that a function names, or "". Where no quota is set any name will do: nothing is limited."""
    named = function.options.get("queue", "")
    if not named or not configured or named in configured:
        return ""
    return f"queue '{named}' has no quota; the configuration's `quotas` has {', '.join(sorted(configured))}"
