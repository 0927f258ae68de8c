"""A peer that is driven through a Python library of its own: a program in its own interpreter that answers one JSON line to each."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peers.daemons import end_descendants
from peers.peer import ROUND_LIMIT_S, RoundFailed


class Driver:
    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, env=env, start_new_session=True)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Raises RoundFailed with the program's own last words if it can't answer in time."""
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], ROUND_LIMIT_S)[0]:
                end_descendants([self._process.pid])
                raise RoundFailed(f"no answer within {ROUND_LIMIT_S:.0f} s to {question}; {self._log} has what it said")
            answer = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            raise RoundFailed(f"the driver ended; {self._log} ends: {self._log.read_text(errors='replace')[-800:]}") from None
        if "error" in answer:
            raise RoundFailed(answer["error"])
        return answer

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            end_descendants([self._process.pid])
        self._process.stdout.close()


def answer_lines(answer: Any) -> None:
    """In the program: call `answer(**question)` for each line until the input ends. Anything else that prints goes to stderr."""
    import os
    import sys
    import traceback

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = answer(**json.loads(line))
        except Exception:
            reply = {"error": traceback.format_exc(limit=-3)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
