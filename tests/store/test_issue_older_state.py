"""`git pull`, `phalanx up`: the state of the version before is taken over, or refused with a sentence; never a stack trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import sqlalchemy as sa

from phalanx.store.database import Database, StoreError


def _version(**fields: object) -> type:
    """A record class `Thing` with an id and these fields beside it."""
    body = {"KEY": ("thing_id",), "__annotations__": {"KEY": ClassVar[tuple[str, ...]], "thing_id": str}}
    for name, (kind, default) in fields.items():  # type: ignore[misc]
        body["__annotations__"][name] = kind  # type: ignore[index]
        if default is not ...:
            body[name] = default
    return dataclass(type("Thing", (), body))


OLD = _version()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that the old version made, with one record."""
    url = f"sqlite:///{tmp_path / 'phalanx.db'}"
    Database(url, [OLD]).close()
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("INSERT INTO thing (thing_id) VALUES ('a')"))
    return url


def test_new_fields_get_their_defaults(url: str) -> None:
    new = _version(count=(int, 7), data=(bytes, b""), names=(list[str], field(default_factory=list)), on=(bool, False))
    for _ in range(2):      # the second time there is nothing left to do
        database = Database(url, [new])
        (thing,) = database.load(new)
        assert (thing.thing_id, thing.count, thing.data, thing.names, thing.on) == ("a", 7, b"", [], False)
        database.close()


def test_a_field_that_old_records_can_not_have_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="thing lacks owner, which has no default: another version"):
        Database(url, [_version(owner=(str, ...))])


def test_a_newer_state_is_refused(url: str) -> None:
    Database(url, [_version(count=(int, 7))]).close()
    with pytest.raises(StoreError, match="thing has count, which this version of phalanx does not know"):
        Database(url, [OLD])
