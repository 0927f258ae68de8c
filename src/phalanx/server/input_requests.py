"""What runners asked for inputs with: one request after the other, each try of one under the same idempotency key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

REMEMBERED = 32     # requests of one runner; a message that is doubled arrives while few others were made


class InputRequests:
    """Memory only: a doubled message lies in a connection, and connections end with the server."""

    def __init__(self) -> None:
        self._keys: dict[str, deque[str]] = {}      # task -> the keys of its last requests, oldest first
        self._answered: dict[str, tuple[str, str]] = {}     # task -> those of the last two that got inputs

    def is_over(self, task_id: str, key: str) -> bool:
        """Is it an earlier request, come once more? Its runner has asked again since: what this one took nobody would run."""
        if not key:
            return False
        keys = self._keys.setdefault(task_id, deque(maxlen=REMEMBERED))
        if key not in keys:
            keys.append(key)
        return key != keys[-1]

    def answered(self, task_id: str, key: str) -> str:
        """It got inputs. Returns the key of a request whose answer, with its payloads, need not be kept any more: the runner has it."""
        before_last, last = self._answered.get(task_id, ("", ""))
        self._answered[task_id] = last, key
        return before_last

    def forget(self, is_over: Callable[[str], bool]) -> None:
        """Tasks that are over ask no more."""
        self._keys = {task_id: keys for task_id, keys in self._keys.items() if not is_over(task_id)}
        self._answered = {task_id: keys for task_id, keys in self._answered.items() if not is_over(task_id)}
