"""A snapshot and its plan as text, to be saved, replayed and compared: JSON with sorted keys, the same bytes everywhere."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from phalanx.model.plan import Plan, Policy, Snapshot
from phalanx.scheduler.index import FleetIndex

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """One decision: what the planner saw, its settings, and what it said."""

    snapshot: Snapshot
    policy: Policy
    plan: Plan


class Ring:
    """The last decisions, oldest first out. Holding them costs little: snapshots share their requests, and indexes their fabrics.

    Of a large fleet fewer are kept: an index whose fabric changed has that fabric's holders of its own, about 100 bytes a node.
    """

    def __init__(self, most: int = 1000, most_nodes: int = 1_000_000) -> None:
        self._most = most
        self._most_nodes = most_nodes
        self._kept: deque[tuple[Recording, FleetIndex | None]] = deque()

    def add(self, snapshot: Snapshot, policy: Policy, plan: Plan, index: FleetIndex | None = None) -> None:
        """Remember a decision. `index`: the one that was given to `plan`, whose nodes and holds the snapshot then lacks."""
        self._kept.append((Recording(snapshot, policy, plan), index))
        nodes = len(snapshot.nodes) if index is None else len(index.home)
        while len(self._kept) > max(1, min(self._most, self._most_nodes // max(nodes + len(snapshot.pending), 1))):
            self._kept.popleft()

    def dump(self) -> str:
        """All of them, one JSON text a line, for `phalanx plan --replay`."""
        return "".join(dump(with_fleet(recording, index)) + "\n" for recording, index in self._kept)


def with_fleet(recording: Recording, index: FleetIndex | None) -> Recording:
    """The same with the nodes and holds that its plan read from an index."""
    if index is None:
        return recording
    snapshot = replace(recording.snapshot, nodes=tuple(index.all_nodes()), holds=tuple(index.all_holds()))
    return replace(recording, snapshot=snapshot)


def dump(recording: Recording) -> str:
    """One line."""
    return _text({"format": FORMAT, **_plain(recording)})


def load(line: str) -> Recording:
    """The reverse. Raises ValueError for another format or for fields this version does not know."""
    data = json.loads(line)
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise ValueError(f"not a recording of format {FORMAT}: {line[:80]}")
    found = _typed(Recording, data)
    assert isinstance(found, Recording)
    return found


def dump_snapshot(snapshot: Snapshot) -> str:
    """A snapshot alone."""
    return _text(_plain(snapshot))


def load_snapshot(text: str) -> Snapshot:
    """The reverse."""
    found = _typed(Snapshot, json.loads(text))
    assert isinstance(found, Snapshot)
    return found


def dump_plan(plan: Plan) -> str:
    """A plan alone: equal plans are equal texts."""
    return _text(_plain(plan))


def _text(data: object) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Dataclasses as dicts without the fields that have their default; sets sorted."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(v) for f in fields(value) if not _is_default(f, v := getattr(value, f.name))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset | set):
        return sorted(_plain(v) for v in value)
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def _is_default(field: Any, value: object) -> bool:
    return field.default is not MISSING and type(value) is type(field.default) and value == field.default


def _typed(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        inner = [a for a in args if a is not type(None)]
        return _typed(inner[0], value) if len(inner) == 1 else value
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_typed(args[0], v) for v in value)
        return tuple(_typed(a, v) for a, v in zip(args, value, strict=True))
    if origin is frozenset:
        return frozenset(_typed(args[0], v) for v in value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        unknown = sorted(set(value) - set(hints))
        if unknown:
            raise ValueError(f"{getattr(kind, '__name__', kind)}: unknown field {', '.join(unknown)}; recorded by a newer version?")
        return kind(**{name: _typed(hints[name], v) for name, v in value.items()})
    return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
