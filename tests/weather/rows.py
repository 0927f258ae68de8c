"""A store without a disk: the rows of the last transaction, in the form in which the real one keeps them.

It outlives control planes. Each of them has a `Handle`, with the public face of store.database.Database; a control plane that
was killed has one that does nothing any more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

import sqlalchemy as sa

from phalanx.store.database import Row, StoreError, Write
from phalanx.store.tables import Records

Key = tuple[str, tuple[Any, ...]]
Changes = list[tuple[str, tuple[Any, ...], dict[str, Any] | None, dict[str, Any] | None]]
"""(table, key, row before, row after) of one transaction"""


class Rows:
    """`before` and `after` are asked around each transaction: either may kill the control plane there."""

    def __init__(self, randomness: random.Random) -> None:
        self.tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
        self.randomness = randomness
        self.full = False                                       # the disk: commits fail
        self.slow_s = 0.002                                     # the longest time that a transaction takes
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[Changes], None] = lambda changes: None
        self.transactions = 0

    def apply(self, writes: list[Row]) -> Changes:
        changes: Changes = []
        for records, row, key in writes:
            table = self.tables.setdefault(records.name, {})
            old = table.get(key)
            if row is None:
                table.pop(key, None)
            else:
                table[key] = row
            changes.append((records.name, key, old, row))
        return changes


class Handle:
    """What one control plane has of the store."""

    def __init__(self, rows: Rows, record_classes: Iterable[type]) -> None:
        metadata = sa.MetaData()
        self.records = {record_class: Records(record_class, metadata) for record_class in record_classes}
        self._rows = rows
        self._queue: list[tuple[list[Row], asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failed: StoreError | None = None
        self.dead = False
        self.lost: Callable[[BaseException], None] = lambda error: None

    def load(self, record_class: type) -> list[Any]:
        records = self.records[record_class]
        return [records.record(row) for row in self._rows.tables.get(records.name, {}).values()]

    def commit(self, writes: list[Write]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.dead:
            return done
        # As each record is now: one that changes without a word before its transaction begins is found out (world.py, _compare).
        self._queue.append(([(table, table.row(record) if record is not None else None, key) for table, record, key in writes], done))
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())
        return done

    async def caught_up(self) -> None:
        if self._queue:
            await asyncio.wait({self._queue[-1][1]})

    def close(self) -> None:
        self.dead = True

    async def _write(self) -> None:
        """Transaction after transaction, each of all that came meanwhile, as the writer thread does it."""
        while self._queue:
            await asyncio.sleep(self._rows.randomness.random() * self._rows.slow_s)
            batch = list(self._queue)
            if not self.dead:
                self._rows.before()
            if self.dead:
                return
            if self._rows.full or self._failed:
                self._failed = self._failed or StoreError("could not commit: no space left on device")
                for _, done in batch:
                    done.set_exception(self._failed)
                del self._queue[: len(batch)]
                continue
            changes = self._rows.apply([write for writes, _ in batch for write in writes])
            self._rows.transactions += 1
            self._rows.after(changes)
            if self.dead:
                return
            del self._queue[: len(batch)]
            for _, done in batch:
                done.set_result(None)
        self._writing = None
