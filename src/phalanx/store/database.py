"""The rows: one writer thread that commits what the server hands it, in order, many units in one transaction.

Order is the promise: when a unit's commit has returned, that unit and all before it are on disk. Group commit comes from
it: units that arrive within a few turns of the event loop, or while a transaction runs, share one transaction and one fsync. (A call
on a warm cluster is put and leased by its ranks in the same moment: one fsync instead of two, of a few in all.)
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from phalanx.store.engine import StoreError as StoreError
from phalanx.store.engine import engine_of, shown, url_of
from phalanx.store.hold import Epoch, FileHold, Holder, lock_postgresql
from phalanx.store.tables import Records

SCHEMA_VERSION = 1
BEAT_S = 5.0            # while nothing is written, the hold is looked after this often: who lost it must not go on answering
GATHER_TURNS = 4        # of the event loop: a long poll that a unit woke changes its own records two or three turns later

Write = tuple[Records, Any, tuple[Any, ...]]      # (which table, the record or None to delete, its key)
Row = tuple[Records, dict[str, Any] | None, tuple[Any, ...]]


@dataclass
class Batch:
    """What one transaction writes, each row once, and who waits for it."""

    rows: list[Row]
    waiting: list[asyncio.Future[None]]
    loop: asyncio.AbstractEventLoop

    def done(self, error: StoreError | None) -> None:
        """Tell all of them, in their loop: one call into it for the whole batch."""
        with contextlib.suppress(RuntimeError):     # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(_tell, self.waiting, error)

_OTHER_VERSION = "another version of phalanx wrote the state; start that one, or choose another --state"


class Database:
    """Rows of every registered record class. `url`: sqlite:///FILE, or postgresql://…; `me`: who holds it, for a second one to be told.

    Raises StoreError: held by another control plane, out of reach, of another version.
    """

    def __init__(self, url: str, record_classes: Iterable[type], durability: str = "full", me: Holder | None = None) -> None:
        self._metadata = sa.MetaData()
        self.records = {record_class: Records(record_class, self._metadata) for record_class in record_classes}
        self._epoch = Epoch(self._metadata)
        self._url = url_of(url)
        self._engine = engine_of(self._url, durability)
        self._insert: Any = postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert
        self._gathered: dict[tuple[str, tuple[Any, ...]], Write] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop
        self._latest: asyncio.Future[None] | None = None
        self._queue: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._upserts: dict[str, Any] = {}
        self._failed: BaseException | None = None
        self._file: FileHold | None = None
        self.lost: Callable[[BaseException], None] = lambda error: None     # called in the writer's thread, when a beat fails
        self._open(me or Holder.me())
        self._thread = threading.Thread(target=self._write, name="store-writer", daemon=True)
        self._thread.start()

    def load(self, record_class: type) -> list[Any]:
        """Every record of a class, as at the last commit. For the start of the server."""
        records = self.records[record_class]
        with self._engine.connect() as connection:
            rows = [row._mapping for row in connection.execute(sa.select(records.table))]
        try:
            return [records.record(row) for row in rows]
        except (TypeError, ValueError, KeyError) as error:
            raise StoreError(f"a row of {records.name} can't be read ({error}): {_OTHER_VERSION}") from error

    def commit(self, writes: list[Write]) -> asyncio.Future[None]:
        """Take these writes in now; the future is done once they, and all taken in before, are on disk, or raises StoreError.

        A record is read when its batch is handed to the writer: what units of one batch change again is written once, as the last left it.
        Whoever changes a record commits without an await in between (server/unit.py), so at that moment no unit is half done.
        """
        loop = asyncio.get_running_loop()
        is_first = not self._waiting
        if is_first:
            self._latest, self._loop = loop.create_future(), loop       # the batch's own, which no waiter can cancel
            self._waiting.append(self._latest)
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append(done)
        for write in writes:
            self._gathered[write[0].name, write[2]] = write
        if is_first:
            self._hand_over_later(loop, GATHER_TURNS)
        return done

    async def caught_up(self) -> None:
        """Return once all that was taken in so far is on disk: before an answer tells what memory already knows."""
        if self._latest is not None and not self._latest.done():
            latest = self._latest
            await asyncio.wait((latest,))     # not the future itself: who stops waiting must not cancel it
            latest.result()

    def close(self) -> None:
        """Write what is queued, then let go of the database."""
        self._hand_over()
        self._queue.put(None)
        self._thread.join()
        self._let_go()

    def _hand_over_later(self, loop: asyncio.AbstractEventLoop, turns: int) -> None:
        if turns == 0:
            self._hand_over()
        else:
            loop.call_soon(self._hand_over_later, loop, turns - 1)

    def _hand_over(self) -> None:
        if not self._waiting:
            return
        gathered, waiting = self._gathered, self._waiting
        self._gathered, self._waiting = {}, []
        try:
            rows = [(records, records.row(record) if record is not None else None, key) for records, record, key in gathered.values()]
        except (TypeError, ValueError) as error:    # a value without a form in the store: memory is ahead of it from here on
            _tell(waiting, StoreError(f"could not commit: {error}"))
            return
        self._queue.put(Batch(rows, waiting, self._loop))

    def _open(self, me: Holder) -> None:
        """Hold it, then make or upgrade its tables."""
        what = f"the database {shown(self._url)}"
        try:
            if self._url.get_backend_name() == "sqlite":
                path = Path(self._url.database or "").resolve()
                self._file = FileHold(path.with_name(path.name + ".lock"), what, me)
            self._connection = self._engine.connect()       # the one that writes; the lock is its own, and it is never opened again
            if self._engine.dialect.name == "postgresql":
                with self._connection.begin():
                    lock_postgresql(self._connection, what, self._epoch)
            self._create(me)
        except sa.exc.OperationalError as error:
            self._let_go()
            raise StoreError(f"{what} can't be used: {str(error.orig).strip()}") from error
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        self._engine.dispose()
        connection = getattr(self, "_connection", None)
        if connection is not None:
            connection.invalidate()     # closes it, in whatever state it is, rather than keep it for another use
            connection.close()
        if self._file is not None:
            self._file.release()

    def _create(self, me: Holder) -> None:
        with self._connection.begin():
            connection = self._connection
            connection.execute(sa.text("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"))
            version = connection.execute(sa.text("SELECT version FROM schema_version")).scalar()
            if version is None:
                connection.execute(sa.text("INSERT INTO schema_version (version) VALUES (:v)"), {"v": SCHEMA_VERSION})
            elif version != SCHEMA_VERSION:
                raise StoreError(f"the state has schema {version}, this version of phalanx has {SCHEMA_VERSION}: {_OTHER_VERSION}")
            self._metadata.create_all(connection)
            for records in self.records.values():
                self._upgrade(connection, records)
            self._epoch.take(connection, me)

    def _upgrade(self, connection: sa.Connection, records: Records) -> None:
        """Give a table of an earlier version the columns that its records have since; old rows get the field's default."""
        present = {column["name"] for column in sa.inspect(connection).get_columns(records.name)}
        if surplus := sorted(present - set(records.table.c.keys())):
            raise StoreError(f"{records.name} has {', '.join(surplus)}, which this version of phalanx does not know: {_OTHER_VERSION}")
        for column in records.table.c:
            if column.name in present:
                continue
            try:
                value = records.default(column.name)
            except KeyError:
                raise StoreError(f"{records.name} lacks {column.name}, which has no default: {_OTHER_VERSION}") from None
            quoted, kind = self._engine.dialect.identifier_preparer.quote(column.name), column.type.compile(self._engine.dialect)
            connection.execute(sa.text(f"ALTER TABLE {records.name} ADD COLUMN {quoted} {kind}"))
            connection.execute(sa.update(records.table).values({column.name: value}))

    def _write(self) -> None:
        closing = False
        while not closing:
            try:
                handed = [self._queue.get(timeout=BEAT_S)]
            except queue.Empty:
                self._beat()
                continue
            while not self._queue.empty():
                handed.append(self._queue.get())
            closing = None in handed
            self._write_batches([batch for batch in handed if batch is not None])

    def _write_batches(self, batches: list[Batch]) -> None:
        """All units or none. After a failure none ever again: nobody knows what of it is on disk, and the next process reads it there."""
        try:
            if self._failed is not None:
                raise self._failed
            if batches:
                self._transact([row for batch in batches for row in batch.rows])
        except BaseException as error:  # whatever it is: nothing may be acknowledged after it
            self._failed = error
            for batch in batches:
                batch.done(StoreError(f"could not commit: {error}"))
        else:
            for batch in batches:
                batch.done(None)

    def _beat(self) -> None:
        if self._failed is not None:
            return
        try:
            self._transact([])
        except BaseException as error:
            self._failed = error
            self.lost(error)

    def _transact(self, writes: list[Row]) -> None:
        with self._connection.begin():
            self._apply(writes)
            self._epoch.check(self._connection)

    def _apply(self, writes: list[Row]) -> None:
        """The last write of each row is what counts, so each row is written once, and each table by one statement for many rows."""
        last: dict[str, dict[tuple[Any, ...], Row]] = {}
        for write in writes:
            last.setdefault(write[0].name, {})[write[2]] = write
        for by_key in last.values():
            records = next(iter(by_key.values()))[0]
            if rows := [row for _, row, _ in by_key.values() if row is not None]:
                self._write_rows(records, rows)
            if gone := [key for _, row, key in by_key.values() if row is None]:
                same_key = (records.table.c[name] == sa.bindparam(f"key_{name}") for name in records.key)
                names = [f"key_{name}" for name in records.key]
                self._connection.execute(sa.delete(records.table).where(*same_key), [dict(zip(names, key, strict=True)) for key in gone])

    def _write_rows(self, records: Records, rows: list[dict[str, Any]]) -> None:
        if self._engine.dialect.name != "sqlite":
            self._connection.execute(self._upsert(records), rows)
            return
        # SQLite takes the values as they are: SQLAlchemy's own way through every one of them was a tenth of the server under load.
        names = list(rows[0])
        if records.name not in self._upserts:
            changed = ", ".join(f'"{name}" = excluded."{name}"' for name in names if name not in records.key)
            columns, key = (", ".join(f'"{name}"' for name in some) for some in (names, records.key))
            self._upserts[records.name] = (
                f'INSERT INTO "{records.name}" ({columns}) VALUES ({", ".join("?" * len(names))}) '
                f"ON CONFLICT ({key}) DO {f'UPDATE SET {changed}' if changed else 'NOTHING'}"
            )
        self._connection.exec_driver_sql(self._upserts[records.name], [tuple(row.values()) for row in rows])

    def _upsert(self, records: Records) -> Any:
        if records.name not in self._upserts:
            statement = self._insert(records.table)
            changed = {c.name: statement.excluded[c.name] for c in records.table.c if c.name not in records.key}
            key = list(records.key)
            update = statement.on_conflict_do_update(index_elements=key, set_=changed) if changed else statement.on_conflict_do_nothing()
            self._upserts[records.name] = update
        return self._upserts[records.name]


def _tell(waiting: list[asyncio.Future[None]], error: StoreError | None) -> None:
    for done in waiting:
        if done.done():     # who waited for it gave up: the write stands all the same
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
