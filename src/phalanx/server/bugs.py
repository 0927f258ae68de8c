"""What becomes of a bug. The one rule: memory never goes on ahead of the store.

A unit that raised before it changed a record is answered INTERNAL, and life goes on. One that raised after is worth the process:
records are half-changed, and only the store has them whole. The process ends, the supervisor starts it again within a second, the
front keeps clients waiting, and each sends its request again.

So would the one whose request met the bug, for ever. Its digest is therefore noted on disk before the end, and the next process
refuses that request without trying it, for as long as it is the same version of phalanx, an hour at most.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from pathlib import Path

from phalanx import __version__

LOG = logging.getLogger("phalanx.bugs")
REMEMBERED_MS = 3_600_000
MOST_REMEMBERED = 1000


class Bugs:
    """Requests that ended an earlier process. `path`: a file of the state folder."""

    def __init__(self, path: Path, now_ms: int) -> None:
        self._path = path
        self._met: dict[str, tuple[int, str]] = {}      # digest of the request -> (when, what it met)
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):      # no file, or one that a crash cut off
            noted = json.loads(path.read_text())
            if noted["version"] == __version__:
                self._met = {key: (at, met) for key, (at, met) in noted["met"].items() if at > now_ms - REMEMBERED_MS}

    @property
    def any(self) -> bool:
        return bool(self._met)

    def met_before(self, request: str) -> str:
        """What an equal request met in an earlier process, or an empty string."""
        return self._met.get(request, (0, ""))[1]

    def note(self, request: str, met: str, now_ms: int) -> None:
        """Before the end of the process. A disk that can't keep it costs a crash more, no more than that."""
        self._met[request] = (now_ms, met)
        newest = dict(sorted(self._met.items(), key=lambda entry: entry[1][0])[-MOST_REMEMBERED:])
        draft = self._path.with_suffix(".new")
        try:
            draft.write_text(json.dumps({"version": __version__, "met": newest}))
            os.replace(draft, self._path)
        except OSError:
            LOG.exception("the request that ends this process can't be noted")


def digest(rpc: str, caller: str, request: bytes) -> str:
    """The same for a retry, and for nothing else."""
    return hashlib.sha256(b"\0".join((rpc.encode(), caller.encode(), request))).hexdigest()
