"""From a database's URL to an engine of it: SQLite in a file, or PostgreSQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

_PSYCOPG = "postgresql+psycopg"
DRIVERS = {"sqlite": "sqlite", "postgresql": _PSYCOPG, "postgres": _PSYCOPG, _PSYCOPG: _PSYCOPG}
KNOWN = "sqlite:////FOLDER/FILE, or postgresql://USER:PASSWORD@HOST/DATABASE"

# Whoever is cut off from PostgreSQL, or whose host is gone, holds the state no longer than this: both ends look after the connection.
SILENCE_S = 30
POSTGRESQL = {
    "connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": SILENCE_S * 1000,
    "application_name": "phalanx",
    "options": f"-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4 -c tcp_user_timeout={SILENCE_S * 1000}",
}  # fmt: skip


class StoreError(Exception):
    """The store can't be used, and why, for the user."""


def url_of(text: str) -> URL:
    """The URL with the driver that we use. StoreError when it names a database that is not known."""
    try:
        url = make_url(text)
    except sa.exc.ArgumentError as error:
        raise StoreError(f"'{text}' is no database URL: {KNOWN}") from error
    if url.drivername not in DRIVERS:
        raise StoreError(f"the database URL begins with '{url.drivername}', and only SQLite and PostgreSQL are known: {KNOWN}")
    if url.drivername == "sqlite" and not url.database:
        raise StoreError(f"'{text}' names no file: {KNOWN}")
    return url.set(drivername=DRIVERS[url.drivername])


def shown(url: URL) -> str:
    """For people: without the password."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def engine_of(url: URL, durability: str) -> sa.Engine:
    """An engine; it has not connected yet. StoreError when the driver is missing."""
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, hide_parameters=True)     # what a row holds (arguments, secrets) is not for logs
        sa.event.listen(engine, "connect", _sqlite_settings(durability))
        return engine
    arguments: dict[str, Any] = POSTGRESQL | {key: value for key, value in url.query.items() if key in POSTGRESQL}
    arguments["options"] += f" -c synchronous_commit={'on' if durability == 'full' else 'off'}"
    try:
        return sa.create_engine(url, connect_args=arguments, hide_parameters=True)
    except ImportError as error:
        raise StoreError(f"PostgreSQL wants the driver psycopg: pip install 'phalanx[postgresql]' ({error})") from error


def _sqlite_settings(durability: str) -> Any:
    def connected(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={'FULL' if durability == 'full' else 'NORMAL'}")
        cursor.execute("PRAGMA busy_timeout=10000")
        cursor.close()

    return connected
