"""What a backup is: one tar file with everything that is not a program's own, of one moment.

    backup.json     {"phalanx": version, "made": when, "database": "sqlite" | "postgresql"}
    config.json     settings and tokens
    phalanx.db      the rows, when they are SQLite's; rows.dump, as pg_dump writes it, when they are PostgreSQL's
    blobs/ logs/    the files that rows name

Rows are copied first, as of one commit; then the files. Those are never changed once a row names them, only added to, so what
came after the rows is more than is needed and harms nothing; the server removes none while `Paths.backup_lock` is held. Log
space that ran out meanwhile is the exception: its oldest segments go all the same, and the index of what is restored says less.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from phalanx import __version__
from phalanx.config import Config
from phalanx.paths import Paths

FORM = 1
ROWS = {"sqlite": "phalanx.db", "postgresql": "rows.dump"}
_NAME = re.compile(r"config\.json|phalanx\.db|rows\.dump|(blobs|logs)/[\w-]+/[\w.-]+")     # and nothing that leads elsewhere


class ArchiveError(Exception):
    """A sentence for the user."""


def write(paths: Paths, config: Config, file: Path) -> int:
    """Make the backup; the file is there whole or not at all. Returns its size."""
    draft, rows = file.with_name(file.name + ".new"), file.with_name(file.name + ".rows")
    try:
        with _nothing_removed(paths), open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
            kind = _copy_rows(paths, config, rows)
            with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
                about = {"form": FORM, "phalanx": __version__, "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "database": kind}
                _add_bytes(tar, "backup.json", json.dumps(about, indent=2).encode())
                _add_bytes(tar, "config.json", paths.config.read_bytes())
                _add_file(tar, ROWS[kind], rows)
                for path in _files(paths):
                    _add_file(tar, str(path.relative_to(paths.state)), path)
            output.flush()
            os.fsync(output.fileno())
        os.replace(draft, file)
        return file.stat().st_size
    finally:
        for left in (draft, rows):
            left.unlink(missing_ok=True)


def read(file: Path, state: Path, database: str) -> dict[str, str]:
    """Unpack into a folder that is not there yet, or empty; whole or not at all. Returns what backup.json says."""
    if state.exists() and any(state.iterdir()):
        raise ArchiveError(f"{state} is not empty: restore into a new folder, and remove the old one when you have seen that all is there")
    draft = state.with_name(state.name + ".restoring")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700, parents=True)
    try:
        about = _unpack(file, draft)
        config = Config.load(Paths(draft).config)
        if about["database"] == "postgresql":
            if not database:
                raise ArchiveError(f"{file} holds the rows of a PostgreSQL database: name an empty one with --database URL")
            rows = draft / ROWS["postgresql"]
            _run("pg_restore", "--no-owner", "--exit-on-error", "--single-transaction", "--dbname", _for_libpq(database), str(rows))
            rows.unlink()
        elif database:
            raise ArchiveError(f"{file} holds rows of SQLite: they go into the state folder, leave out --database")
        config.database = database
        config.extra.pop("database", None)
        config.save(Paths(draft).config)
        Paths(draft).restored.write_text(about["made"])
        if state.exists():
            state.rmdir()
        os.replace(draft, state)
        return about
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _nothing_removed(paths: Paths) -> Iterator[None]:
    """Waits for a server that is just removing; one backup at a time."""
    with paths.backup_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _copy_rows(paths: Paths, config: Config, target: Path) -> str:
    """All rows as of one commit. Returns the kind of database."""
    url = config.database_url
    target.unlink(missing_ok=True)
    target.touch(mode=0o600)
    if url.startswith("postgres"):
        _run("pg_dump", "--format=custom", "--no-owner", "--dbname", _for_libpq(url), "--file", str(target))
        return "postgresql"
    source = Path(url.removeprefix("sqlite:///")) if url else paths.database
    if not source.exists():
        raise ArchiveError(f"there is no database {source}: nothing was ever up with this state")
    try:
        # In one step: a single read transaction, which hinders no writer (WAL) and which no writer can make begin again.
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as rows, closing(sqlite3.connect(target)) as copy:
            rows.backup(copy)
            (said,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise ArchiveError(f"{source} can't be copied: {error}") from error
    if said != "ok":
        raise ArchiveError(f"the copy of {source} is damaged: {said}")
    return "sqlite"


def _for_libpq(url: str) -> str:
    """Its own programs know no drivers in URLs."""
    return url.replace("+psycopg:", ":", 1)


def _run(program: str, *arguments: str) -> None:
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ArchiveError(f"{program} is not on this machine: install PostgreSQL's client programs of the server's version") from error
    if done.returncode != 0:
        raise ArchiveError(f"{program} failed: {done.stderr.strip() or done.returncode}")


def _files(paths: Paths) -> Iterator[Path]:
    """Blobs, parts of uploads that go on, log segments."""
    for folder in (paths.blobs, paths.logs):
        yield from sorted(path for path in folder.glob("*/*") if path.is_file() and path.suffix != ".new")


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_member(name, len(data)), io.BytesIO(data))


def _add_file(tar: tarfile.TarFile, name: str, path: Path) -> None:
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; its absence is no error
    except FileNotFoundError:       # log space ran out just now
        return
    with file:
        size = os.fstat(file.fileno()).st_size
        tar.addfile(_member(name, size), _Padded(file))     # type: ignore[arg-type]


class _Padded:
    """A segment that a starting server cuts meanwhile reads on as zeros, which are no frame: the index names nothing there."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(time.time())
    return member


def _unpack(file: Path, folder: Path) -> dict[str, str]:
    try:
        with tarfile.open(file) as tar:
            first = tar.next()
            said = tar.extractfile(first) if first is not None and first.name == "backup.json" else None
            if said is None:
                raise ArchiveError(f"{file} is no backup of phalanx")
            about: dict[str, str] = json.loads(said.read())
            if int(about["form"]) > FORM:
                raise ArchiveError(f"{file} was made by phalanx {about['phalanx']}, which is newer than this one ({__version__})")
            for member in tar:
                if member.isfile() and _NAME.fullmatch(member.name):
                    _extract(tar, member, folder / member.name)
    except (tarfile.TarError, ValueError, KeyError) as error:
        raise ArchiveError(f"{file} is no backup of phalanx, or a damaged one: {error}") from error
    except EOFError as error:
        raise ArchiveError(f"{file} is cut off") from error
    if not (folder / "config.json").exists() or not (folder / ROWS[about["database"]]).exists():
        raise ArchiveError(f"{file} is cut off: it holds no rows")
    return about


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        shutil.copyfileobj(source, target)
