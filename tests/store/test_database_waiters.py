from __future__ import annotations

import asyncio
from pathlib import Path

from phalanx.model.kept import Counter
from phalanx.store.database import Database


def test_a_waiter_that_gives_up_stops_neither_its_write_nor_the_next(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    database = Database(url, [Counter])
    records = database.records[Counter]

    async def two_writes() -> None:
        first = database.commit([(records, records.row(Counter("first", 1)), ("first",))])
        first.cancel()
        await database.commit([(records, records.row(Counter("second", 2)), ("second",))])

    asyncio.run(two_writes())
    database.close()
    again = Database(url, [Counter])
    assert {counter.name: counter.value for counter in again.load(Counter)} == {"first": 1, "second": 2}
    again.close()
