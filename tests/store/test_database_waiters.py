from __future__ import annotations

import asyncio

import sqlalchemy as sa

from phalanx.model.kept import Counter
from phalanx.store.database import Database


def test_a_waiter_that_gives_up_stops_neither_its_write_nor_the_next(url: str) -> None:
    database = Database(url, [Counter])
    records = database.records[Counter]

    async def two_writes() -> None:
        first = database.commit([(records, Counter("first", 1), ("first",))])
        first.cancel()
        await database.commit([(records, Counter("second", 2), ("second",))])

    asyncio.run(two_writes())
    database.close()
    again = Database(url, [Counter])
    assert {counter.name: counter.value for counter in again.load(Counter)} == {"first": 1, "second": 2}
    again.close()


def test_units_of_one_moment_share_a_transaction_in_their_order(url: str) -> None:
    database = Database(url, [Counter])
    records = database.records[Counter]
    transactions = []
    sa.event.listen(database._engine, "commit", lambda connection: transactions.append(connection))

    async def one_that_wakes_another() -> None:
        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        async def poll() -> None:
            await asyncio.wait_for(woken, 10)
            await database.commit([(records, Counter("same", 2), ("same",))])

        polling = asyncio.create_task(poll())
        await asyncio.sleep(0)
        first = database.commit([(records, Counter("same", 1), ("same",))])
        woken.set_result(None)
        await asyncio.gather(first, polling)

    asyncio.run(one_that_wakes_another())
    assert len(transactions) == 1
    assert [counter.value for counter in database.load(Counter)] == [2]
    database.close()


def test_what_was_taken_in_is_written_before_the_end(url: str) -> None:
    database = Database(url, [Counter])
    records = database.records[Counter]

    async def leave_at_once() -> None:
        written = database.commit([(records, Counter("last", 1), ("last",))])
        database.close()
        await written

    asyncio.run(leave_at_once())
    again = Database(url, [Counter])
    assert [counter.name for counter in again.load(Counter)] == ["last"]
    again.close()
