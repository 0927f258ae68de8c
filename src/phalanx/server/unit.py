"""One unit of work: records change in memory at once, rows are committed together, and only then is anything acted on.

The body of a unit has no await between its first change and its end, so units never interleave; the database commits them
in that order (store/database.py). A unit that fails half-way leaves memory ahead of the store: then the process must end
and start from the store, which is cheap and always right (design rule 7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from phalanx.server.world import World
from phalanx.store.database import Database, Write

LOG = logging.getLogger("phalanx.unit")


class Unit:
    """Collects what one request, report or timer changes."""

    def __init__(self, world: World, database: Database) -> None:
        self._world = world
        self._database = database
        self._changed: dict[tuple[type, Any], Any] = {}
        self._actions: list[Callable[[], None]] = []
        self._acted: asyncio.Future[None]
        self._ended: Callable[[Unit, BaseException | None], None] | None = None

    @property
    def has_changes(self) -> bool:
        """Of records: memory is ahead of the store until it is committed."""
        return bool(self._changed)

    @property
    def is_empty(self) -> bool:
        return not self._changed and not self._actions

    def put(self, record: Any) -> None:
        """Insert or update: say it after the last change of the record in this unit, or before, as long as it is in the same unit."""
        key = self._world.key_of(record)
        self._world[type(record)][key] = record
        self._changed[(type(record), key)] = record
        self._tell(record)

    def delete(self, record: Any) -> None:
        key = self._world.key_of(record)
        self._world[type(record)].pop(key, None)
        self._changed[(type(record), key)] = None
        self._tell(record)

    def after(self, action: Callable[[], None]) -> None:
        """Run once the unit is on disk: messages to agents, answers, wake-ups. Must not raise."""
        self._actions.append(action)

    def commit(self, ended: Callable[[Unit, BaseException | None], None] | None = None) -> asyncio.Future[None]:
        """Hand the changes to the store now, in the order of units. Call exactly once, with no await since the first change.

        The future is done when they are on disk and acted on. Nobody need wait for it, and who gives up waiting stops nothing.
        `ended` is told then, or with the error of a commit that failed. (Callbacks, no task: a tenth of the server under load.)
        """
        loop = asyncio.get_running_loop()
        self._ended, self._acted = ended, loop.create_future()
        writes: list[Write] = [
            (self._database.records[record_class], record, key if isinstance(key, tuple) else (key,))
            for (record_class, key), record in self._changed.items()
        ]
        if writes:
            self._database.commit(writes).add_done_callback(self._written)
        else:
            loop.call_soon(self._act)
        return self._acted

    def _tell(self, record: Any) -> None:
        for changed in self._world.watchers.get(type(record), ()):
            changed(record)

    def _written(self, written: asyncio.Future[None]) -> None:
        error = written.exception()
        if error is None:
            self._act()
            return
        if not self._acted.done():
            self._acted.set_exception(error)
            self._acted.exception()     # nobody may be waiting for it
        if self._ended is not None:
            self._ended(self, error)

    def _act(self) -> None:
        for action in self._actions:
            try:
                action()
            except Exception:   # the change itself stands; ending the process would meet the same action again
                LOG.exception("a change was committed, and what should follow it failed")
        if not self._acted.done():
            self._acted.set_result(None)
        if self._ended is not None:
            self._ended(self, None)
