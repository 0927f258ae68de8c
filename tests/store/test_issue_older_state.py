"""`git pull`, `phalanx up`: the state of the version before is taken over, or refused with a sentence; never a stack trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import sqlalchemy as sa

from phalanx.store.database import SCHEMA_VERSION, Database, StoreError
from phalanx.store.engine import url_of


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
def old(url: str) -> str:
    """A store that the old version made, with one record."""
    Database(url, [OLD]).close()
    execute(url, "INSERT INTO thing (thing_id) VALUES ('a')")
    return url


def execute(url: str, statement: str) -> None:
    engine = sa.create_engine(url_of(url))
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


def test_new_fields_get_their_defaults(old: str) -> None:
    new = _version(count=(int, 7), data=(bytes, b""), names=(list[str], field(default_factory=list)), on=(bool, False))
    for _ in range(2):      # the second time there is nothing left to do
        database = Database(old, [new])
        (thing,) = database.load(new)
        assert (thing.thing_id, thing.count, thing.data, thing.names, thing.on) == ("a", 7, b"", [], False)
        database.close()


def test_a_field_that_old_records_can_not_have_is_refused(old: str) -> None:
    with pytest.raises(StoreError, match="thing lacks owner, which has no default: another version"):
        Database(old, [_version(owner=(str, ...))])


def test_a_newer_state_is_refused(old: str) -> None:
    Database(old, [_version(count=(int, 7))]).close()
    with pytest.raises(StoreError, match="thing has count, which this version of phalanx does not know"):
        Database(old, [OLD])


def test_a_newer_schema_is_refused(old: str) -> None:
    execute(old, f"UPDATE schema_version SET version = {SCHEMA_VERSION + 1}")
    sentence = f"the state has schema {SCHEMA_VERSION + 1}, this version of phalanx has {SCHEMA_VERSION}: another version of phalanx wrote"
    with pytest.raises(StoreError, match=sentence):
        Database(old, [OLD])
