"""Case 89: two control planes on one state. The second is told who has it; one that lost its hold commits nothing more."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from phalanx.model.kept import Counter
from phalanx.store import database as database_module
from phalanx.store.database import Database, StoreError
from phalanx.store.engine import url_of
from phalanx.store.hold import FileHold, Holder, StateHeld
from tests.databases import fresh_database, postgresql

HOLD = """
import sys, time
from phalanx.model.kept import Counter
from phalanx.store.database import Database
from phalanx.store.hold import Holder
database = Database(sys.argv[1], [Counter], me=Holder.me("127.0.0.1:8900"))
print("held", flush=True)
time.sleep(600)
"""


def put(database: Database, name: str, value: int = 1) -> None:
    async def commit() -> None:
        records = database.records[Counter]
        await database.commit([(records, Counter(name, value), (name,))])

    asyncio.run(commit())


def names(url: str) -> set[str]:
    database = Database(url, [Counter])
    found = {counter.name for counter in database.load(Counter)}
    database.close()
    return found


def execute(url: str, statement: str) -> None:
    engine = sa.create_engine(url_of(url))
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


def test_a_second_control_plane_is_told_who_holds_the_state(url: str) -> None:
    """Another process, as in life; and when that is killed, the next has it at once."""
    first = subprocess.Popen([sys.executable, "-c", HOLD, url], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "held\n"
    with pytest.raises(StateHeld, match=rf"process {first.pid} on {socket.gethostname()} since \d{{4}}-.*, listening at 127.0.0.1:8900"):
        Database(url, [Counter])
    first.send_signal(signal.SIGKILL)
    first.communicate()
    database = Database(url, [Counter])
    put(database, "mine")
    database.close()
    assert names(url) == {"mine"}


def test_a_folder_is_held_as_a_database_is(tmp_path: Path) -> None:
    hold = FileHold(tmp_path / "server.lock", "the state", Holder.me())
    with pytest.raises(StateHeld, match=f"the state is held by another control plane, process {os.getpid()}"):
        FileHold(tmp_path / "server.lock", "the state", Holder.me())
    hold.release()
    FileHold(tmp_path / "server.lock", "the state", Holder.me()).release()


def test_a_writer_whose_lock_was_lost_behind_its_back_commits_nothing_more(url: str) -> None:
    """As by a proxy before PostgreSQL, or a file system without locks: each commit compares the epoch."""
    database = Database(url, [Counter])
    put(database, "before")
    execute(url, "UPDATE control_plane SET epoch = epoch + 1, pid = 4711, host = 'elsewhere'")
    for name in ("after", "again"):
        with pytest.raises(StoreError, match="taken over by process 4711 on elsewhere"):
            put(database, name)
    database.close()
    assert names(url) == {"before"}


def test_a_writer_that_writes_nothing_notices_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would go on answering from what is another's by now."""
    monkeypatch.setattr(database_module, "BEAT_S", 0.05)
    database = Database(url, [Counter])
    noticed = threading.Event()
    database.lost = lambda error: noticed.set()
    execute(url, "UPDATE control_plane SET epoch = epoch + 1")
    assert noticed.wait(30)
    database.close()


def test_postgresql_is_cut_off_and_nothing_is_acknowledged_on_another_connection(tmp_path: Path) -> None:
    """The lock went with the connection: a new one would have none."""
    with fresh_database("postgresql", tmp_path) as url:
        database = Database(url, [Counter])
        put(database, "before")
        postgresql().cut(url)
        for name in ("after", "again"):
            with pytest.raises(StoreError, match="could not commit"):
                put(database, name)
        successor = Database(url, [Counter])    # while the first still lives
        put(successor, "successor's")
        with pytest.raises(StoreError, match="could not commit"):
            put(database, "late")
        for one in (successor, database):
            one.close()
        assert names(url) == {"before", "successor's"}


def test_states_in_schemas_of_their_own_share_a_database(tmp_path: Path) -> None:
    with fresh_database("postgresql", tmp_path) as url:
        both = []
        for schema in ("one", "two"):
            execute(url, f"CREATE SCHEMA {schema}")
            execute(url, f"CREATE ROLE {schema}_{tmp_path.name[-4:]} LOGIN SUPERUSER".replace("-", "_"))
            role = f"{schema}_{tmp_path.name[-4:]}".replace("-", "_")
            execute(url, f"ALTER ROLE {role} SET search_path = {schema}")
            both.append(Database(url.replace("phalanx@", f"{role}@"), [Counter]))
        for database in both:
            put(database, "mine")
            database.close()


@pytest.mark.parametrize(
    "url, sentence",
    [
        ("mysql://root@localhost/phalanx", "begins with 'mysql', and only SQLite and PostgreSQL are known"),
        ("phalanx.db", "'phalanx.db' is no database URL"),
        ("sqlite://", "names no file"),
        ("postgresql://phalanx:secret@127.0.0.1:1/none", r"postgresql://phalanx:\*\*\*@127.0.0.1:1/none can't be used: .*refused"),
    ],
)
def test_a_database_that_can_not_be_used_is_said(url: str, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence) as refused:
        Database(url, [Counter])
    assert "secret" not in str(refused.value)


def test_what_a_program_says_can_not_stop_the_writer(url: str) -> None:
    """PostgreSQL keeps no text with a zero in it."""
    database = Database(url, [Counter])
    put(database, "a\0b")
    assert [counter.name for counter in database.load(Counter)] == ["a\N{SYMBOL FOR NULL}b"]
    database.close()
