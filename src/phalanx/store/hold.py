"""One control plane a state: whoever writes holds it, a second one is told who does, and one that lost its hold writes no more.

A file is held by flock on another one beside it, which ends with the process, however it ends. A PostgreSQL database is held by
an advisory lock of the very connection that writes. Both have an epoch as well, which each new holder counts up and each commit
compares: it also stops a writer whose lock was lost behind its back (a proxy that changed the connection, a file system without
working locks). (design rule 6: one writer, guarded writes)
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

import sqlalchemy as sa

from phalanx.store.engine import StoreError

PATIENCE_S = 3.0        # for a predecessor that was just killed: its database connection is noticed to be gone a moment later
LOCK_CLASS = 0x5048414C     # "PHAL": PostgreSQL's advisory locks are shared by all programs of a database


class StateHeld(StoreError):
    """Another control plane has it; the sentence says which."""


class HoldLost(StoreError):
    """Another control plane has taken the state since."""


@dataclass(frozen=True)
class Holder:
    """Who writes. `since` in seconds of the wall clock; `listen` as clients reach it, where there is such a place."""

    pid: int
    host: str
    since: float
    listen: str = ""

    @classmethod
    def me(cls, listen: str = "") -> Holder:
        return cls(os.getpid(), socket.gethostname(), time.time(), listen)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
        where = f", listening at {self.listen}" if self.listen else ""
        return f"process {self.pid} on {self.host} since {since}{where}"


class FileHold:
    """Holds what a path names, until `release()` or the end of the process. The lock file stays: its removal would be a race."""

    def __init__(self, path: Path, what: str, me: Holder) -> None:
        """Raises StateHeld. `path`: of the lock file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file: IO[str] = os.fdopen(handle, "r+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _said(self._file.read())
            self._file.close()
            raise StateHeld(_held(what, holder)) from None
        except OSError as error:
            self._file.close()
            raise StoreError(f"{path} can't be locked ({error.strerror}): put the state on a file system with working locks") from error
        self._file.truncate()
        self._file.write(json.dumps(dataclasses.asdict(me)))
        self._file.flush()

    def release(self) -> None:
        """Again is no error."""
        if self._file.closed:
            return
        with contextlib.suppress(OSError):      # a full disk: what stands there names us a little longer, and nobody is locked out
            self._file.truncate(0)
        self._file.close()


class Epoch:
    """The row that names the present holder, and its number."""

    def __init__(self, metadata: sa.MetaData) -> None:
        self._table = sa.Table(
            "control_plane", metadata, sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("epoch", sa.BigInteger, nullable=False), sa.Column("pid", sa.BigInteger, nullable=False),
            sa.Column("host", sa.Text, nullable=False), sa.Column("since", sa.Float, nullable=False),
            sa.Column("listen", sa.Text, nullable=False),
        )  # fmt: skip
        self._mine = 0

    def take(self, connection: sa.Connection, me: Holder) -> None:
        """In a transaction of its own: from then on nobody else commits."""
        row = connection.execute(sa.select(self._table)).first()
        self._mine = row.epoch + 1 if row is not None else 1
        values = {"id": 1, "epoch": self._mine, **dataclasses.asdict(me)}
        if row is None:
            connection.execute(sa.insert(self._table).values(values))
        else:
            taken = connection.execute(sa.update(self._table).where(self._table.c.epoch == row.epoch).values(values))
            if taken.rowcount != 1:
                raise StateHeld(_held("the database", self.holder(connection)))

    def check(self, connection: sa.Connection) -> None:
        """At the end of each transaction, when its writes hold the locks: raises HoldLost when the epoch is another's by now."""
        epoch = self._table.c.epoch
        if connection.execute(sa.select(epoch).with_for_update(read=True)).scalar() != self._mine:
            raise HoldLost(f"the database was taken over by {self.holder(connection)}: this control plane writes no more")

    def holder(self, connection: sa.Connection) -> Holder | None:
        row = connection.execute(sa.select(self._table)).first()
        return Holder(row.pid, row.host, row.since, row.listen) if row is not None else None


def lock_postgresql(connection: sa.Connection, what: str, epoch: Epoch) -> None:
    """Take the advisory lock for the life of this connection. One a schema: several states may share a database."""
    ends = time.monotonic() + PATIENCE_S
    lock = sa.text("SELECT pg_try_advisory_lock(:class, hashtext(current_schema()))")
    while not connection.execute(lock, {"class": LOCK_CLASS}).scalar():
        if time.monotonic() > ends:
            exists = sa.inspect(connection).has_table("control_plane")
            raise StateHeld(_held(what, epoch.holder(connection) if exists else None))
        time.sleep(0.1)


def _said(text: str) -> Holder | None:
    try:
        return Holder(**json.loads(text))
    except (ValueError, TypeError):     # it has locked the file and not yet said who it is
        return None


def _held(what: str, holder: Holder | None) -> str:
    return (f"{what} is held by another control plane, {holder or 'which has only just begun'}: one state has one writer. "
            "Stop that one first (`phalanx down` on its machine), or choose another state or database")
