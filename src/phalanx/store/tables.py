"""Tables made from the model's dataclasses: a field is a column, its annotation the column's type, KEY the primary key."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
import typing
from typing import Any

import sqlalchemy as sa

_COLUMNS: dict[type, Any] = {str: sa.Text, int: sa.BigInteger, float: sa.Float, bool: sa.Boolean, bytes: sa.LargeBinary}


class Records:
    """How one record class is stored: its table, and the way from a record to a row and back."""

    def __init__(self, record_class: type, metadata: sa.MetaData) -> None:
        self.record_class = record_class
        self.name = _snake(record_class.__name__)
        self._hints = typing.get_type_hints(record_class)
        self._fields = [f.name for f in dataclasses.fields(record_class)]
        self._as_json = [name for name in self._fields if self._hints[name] not in _COLUMNS]
        self._texts = [name for name in self._fields if self._hints[name] is str]
        self._values = operator.attrgetter(*self._fields)
        self.key: tuple[str, ...] = record_class.KEY  # type: ignore[attr-defined]
        self.table = sa.Table(self.name, metadata, *(self._column(name) for name in self._fields))

    def row(self, record: Any) -> dict[str, Any]:
        """The record's values now: later changes of the record do not reach the row."""
        row = dict(zip(self._fields, self._values(record), strict=True))
        for name in self._as_json:
            row[name] = _json(row[name])
        if "\0" in "".join(map(row.__getitem__, self._texts)):      # asked of all at once: there are tens of rows a call
            for name in self._texts:    # PostgreSQL has no such text; what a user's program says must not stop the writer
                row[name] = row[name].replace("\0", "\N{SYMBOL FOR NULL}")
        return row

    def record(self, row: typing.Mapping[str, Any]) -> Any:
        values = dict(row)
        for name in self._as_json:
            values[name] = _typed(self._hints[name], json.loads(values[name]))
        return self.record_class(**values)

    def default(self, name: str) -> Any:
        """A column's value for a record that was written before the field was there. KeyError when the class knows none."""
        field = next(f for f in dataclasses.fields(self.record_class) if f.name == name)
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            raise KeyError(name)
        return _json(value) if name in self._as_json else value

    def key_of(self, record: Any) -> tuple[Any, ...]:
        return tuple(getattr(record, name) for name in self.key)

    def _column(self, name: str) -> sa.Column[Any]:
        return sa.Column(name, _COLUMNS.get(self._hints[name], sa.Text), primary_key=name in self.key, autoincrement=False, nullable=False)


def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() and at else letter.lower() for at, letter in enumerate(name))


def _json(value: Any) -> str:
    """Most are empty, and need no encoder."""
    return _ENCODER.encode(value) if value else _EMPTY.get(type(value)) or _ENCODER.encode(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"__bytes__": value.hex()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a record holds {value!r}, which has no form in the store")


_ENCODER = json.JSONEncoder(default=_plain, separators=(",", ":"))     # json.dumps would make one for every value
_EMPTY = {list: "[]", dict: "{}", tuple: "[]", type(None): "null"}


@functools.cache
def _hints_of(record_class: Any) -> dict[str, Any]:
    """Looked up once: a start reads many thousands of records, and this would be a third of its time."""
    return typing.get_type_hints(record_class)


def _typed(hint: Any, value: Any) -> Any:
    """JSON back to what the annotation says: nested dataclasses, bytes, int keys of dicts, sets."""
    if isinstance(value, dict) and set(value) == {"__bytes__"}:
        return bytes.fromhex(value["__bytes__"])
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return None if value is None else _typed(inner[0], value)
    if dataclasses.is_dataclass(hint):
        hints = _hints_of(hint)
        return hint(**{name: _typed(hints[name], part) for name, part in value.items()})  # type: ignore[operator]
    arguments = typing.get_args(hint)
    if origin is dict:
        return {(int(k) if arguments[0] is int else k): _typed(arguments[1], v) for k, v in value.items()}
    if origin is set:
        return {_typed(arguments[0], part) for part in value}
    if origin is tuple:
        return tuple(_typed(arguments[0], part) for part in value)
    if origin is list:
        return [_typed(arguments[0], part) for part in value]
    return value
