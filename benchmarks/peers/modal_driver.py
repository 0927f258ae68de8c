"""The program behind Phalanx and the stateless server: the stock client's SDK, calling a deployed function.

python modal_driver.py          with MODAL_SERVER_URL and the tokens in its environment
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import modal

from peers.driver import answer_lines

LOGS_S = 20.0
NUMBERS = itertools.count()


class Calls:
    def __init__(self) -> None:
        self._functions: dict[tuple[str, str], modal.Function] = {}
        self._since = datetime.now(UTC) - timedelta(seconds=5)

    def answer(self, do: str, **question: Any) -> dict[str, Any]:
        return getattr(self, do)(**question)

    def call(self, app: str, function: str, arguments: list[Any]) -> dict[str, Any]:
        """One call: when it was made, its name, and the seconds until its result."""
        handle = self._function(app, function)
        name = f"call-{next(NUMBERS)}"
        called = time.monotonic()
        handle.remote(name, *arguments)
        return {"name": name, "called": called, "result": time.monotonic() - called}

    def stamps(self, app: str, function: str, names: list[str], size: int) -> dict[str, list[float]]:
        """When each rank entered user code in each call, from the function's log, once it has all of them."""
        deadline = time.monotonic() + LOGS_S
        while time.monotonic() < deadline:
            found: dict[str, list[float]] = {name: [] for name in names}
            for entry in self._function(app, function).logs.fetch(since=self._since):
                for line in entry.message.splitlines():
                    if line.startswith("stamps "):
                        for name, stamp in json.loads(line.removeprefix("stamps ")).items():
                            found.get(name, []).append(stamp)
            if all(len(stamps) == size for stamps in found.values()):
                return found
            time.sleep(0.1)
        raise TimeoutError(f"after {LOGS_S:.0f} s the log of {app}.{function} lacks some of {size} ranks of {len(names)} calls: {found}")

    def _function(self, app: str, function: str) -> modal.Function:
        key = (app, function)
        if key not in self._functions:
            self._functions[key] = modal.Function.from_name(app, function)
            self._functions[key].hydrate()
        return self._functions[key]


if __name__ == "__main__":
    answer_lines(Calls().answer)
