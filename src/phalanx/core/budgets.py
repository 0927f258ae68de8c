"""Two budgets of one input: the user's retries, as the client defines them, and restarts that were not the program's fault."""

from __future__ import annotations

from phalanx.model.work import Function

LEAST_RETRY_MS = 1_000      # the client's own floor and ceiling (modal/retries.py)
MOST_RETRY_MS = 24 * 60 * 60 * 1_000
MOST_RESTART_MS = 60_000
KEPT_NODES = 4              # the latest that an input's ends spoke against


def retry_delay_ms(function: Function, failures: int) -> int:
    """Before the retry after the n-th failure of the user's code: initial_delay x backoff_coefficient^(n-1), at most max_delay."""
    delay = min(function.retry_initial_ms * function.retry_backoff ** (max(failures, 1) - 1), function.retry_max_ms)
    return int(min(max(delay, LEAST_RETRY_MS), MOST_RETRY_MS))


def restart_delay_ms(failures: int) -> int:
    """Before the restart after the n-th infrastructure failure: at once, then 1 s, 2 s, 4 s... at most a minute."""
    return 0 if failures <= 1 else min(1_000 << min(failures - 2, 20), MOST_RESTART_MS)


def excluded_after(excluded: list[str], blamed: tuple[str, ...]) -> list[str]:
    """The nodes to avoid, latest last, each once."""
    return [*(node_id for node_id in excluded if node_id not in blamed), *blamed][-KEPT_NODES:]
