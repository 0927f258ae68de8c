"""The databases that stories about the store are told over: SQLite in a file, and a PostgreSQL server of the test run's own.

    @pytest.fixture(params=DATABASES)
    def url(request, tmp_path):
        with fresh_database(request.param, tmp_path) as url:
            yield url

The server is the machine's own `postgres` (Debian: `apt-get install postgresql`), started once for the run as the user
`postgres` in a folder of its own on a Unix socket, and gone with it. Where there is none, those stories are skipped.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.harness.waiting import until

PR_SET_PDEATHSIG = 1
DATABASES = ["sqlite", "postgresql"]


@contextmanager
def fresh_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'rows.db'}"
        return
    server = postgresql()
    name = f"phalanx_{secrets.token_hex(6)}"
    server.execute(f"CREATE DATABASE {name}")
    yield server.url(name)
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


class PostgreSQL:
    """One running server. `cut()`: every connection to a database breaks, as when it restarts."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder, self._programs = folder, programs
        self._data = folder / "data"

    def start(self) -> None:
        settings = ("-c", "listen_addresses=", "-k", str(self._folder), "-c", "fsync=off", "-c", "full_page_writes=off")
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "phalanx", "-E", "UTF8", "--locale=C.UTF-8")
        self._server = subprocess.Popen([self._programs / "postgres", "-D", str(self._data), *settings], cwd=self._folder,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                                        preexec_fn=_end_with_the_run, **_account())  # type: ignore[call-overload]
        until(self._answers)

    def stop(self) -> None:
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except sa.exc.OperationalError:
            return False
        return True

    def url(self, name: str) -> str:
        return f"postgresql://phalanx@/{name}?host={self._folder}"

    def execute(self, statement: str) -> None:
        engine = sa.create_engine(f"postgresql+psycopg://phalanx@/postgres?host={self._folder}", isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(statement))
        engine.dispose()

    def cut(self, url: str) -> None:
        name = sa.make_url(url).database
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([self._programs / program, *arguments], check=True, cwd=self._folder, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, **_account())  # type: ignore[call-overload]


def _account() -> dict[str, Any]:
    """The user `postgres` where we are root: the server refuses to run as root."""
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


def _end_with_the_run() -> None:
    """Whoever kills the tests does not leave a server behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


@cache
def postgresql() -> PostgreSQL:
    """The server of this run; skips where the machine has none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and not on_path:
        pytest.skip("no PostgreSQL on this machine (Debian: apt-get install postgresql)")
    programs = found[-1].parent if found else Path(str(on_path)).parent
    folder = Path(tempfile.mkdtemp(prefix="phx-pg-"))
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(folder, account.pw_uid, account.pw_gid)
    server = PostgreSQL(folder, programs)
    atexit.register(server.stop)
    server.start()
    return server
