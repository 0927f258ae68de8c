"""All that the server knows, in memory: one table per record class, filled from the store at start.

Memory leads and the store follows in order: a unit changes records here and is then committed (unit.py). Nothing outside
a unit changes a record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from phalanx.model.app import App, AppVersion, Class, Environment, Image, Mount
from phalanx.model.cluster import Assignment, Attempt, Member
from phalanx.model.failed_starts import CrashedStarts
from phalanx.model.kept import Counter, KeptAnswer
from phalanx.model.lease import GrantedLimits
from phalanx.model.logs import LogPiece
from phalanx.model.node import NodeRecord
from phalanx.model.retention import KeptNodes
from phalanx.model.secret import Secret
from phalanx.model.work import Call, Chunk, Function, Input, Output
from phalanx.store.database import Database

RECORD_CLASSES: tuple[type, ...] = (
    App, AppVersion, Class, Environment, Image, Mount, Function, Call, Input, Output, Chunk,
    Assignment, Member, Attempt, NodeRecord, KeptNodes, KeptAnswer, Counter, LogPiece, Secret,
    GrantedLimits, CrashedStarts,
)  # fmt: skip


class World:
    """Tables by record class: `world[App]["ap-…"]`; a key of several fields is a tuple."""

    def __init__(self) -> None:
        self._tables: dict[type, dict[Any, Any]] = {record_class: {} for record_class in RECORD_CLASSES}
        self._keys: dict[type, tuple[str, ...]] = {record_class: record_class.KEY for record_class in RECORD_CLASSES}  # type: ignore[attr-defined]
        self.watchers: dict[type, list[Callable[[Any], None]]] = defaultdict(list)

    @classmethod
    def load(cls, database: Database) -> World:
        """The world as at the last commit."""
        world = cls()
        for record_class, table in world._tables.items():
            for record in database.load(record_class):
                table[world.key_of(record)] = record
        return world

    def __getitem__(self, record_class: type) -> dict[Any, Any]:
        return self._tables[record_class]

    def functions_of_all_versions(self) -> list[Function]:
        """Those that can be called, and those of earlier deployments, which a rollback brings back."""
        return [*self[Function].values(), *(function for version in self[AppVersion].values() for function in version.functions)]

    def watch(self, record_class: type, changed: Callable[[Any], None]) -> None:
        """Call this with every record of the class that a unit puts or deletes. It may change again in that unit: only note it."""
        self.watchers[record_class].append(changed)

    def key_of(self, record: Any) -> Any:
        key = self._keys[type(record)]
        return getattr(record, key[0]) if len(key) == 1 else tuple(getattr(record, name) for name in key)
