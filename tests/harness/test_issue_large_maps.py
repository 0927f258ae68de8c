"""A map of many thousands: what is done for each input must not grow with the number of those that wait behind it."""

from __future__ import annotations

import random

from phalanx.model.work import Input
from phalanx.server.pool import Pool


class Counting(dict[str, Input]):
    """The world's table of inputs, counting how often one is looked at."""

    looks = 0

    def __getitem__(self, input_id: str) -> Input:
        self.looks += 1
        return super().__getitem__(input_id)


def filled(count: int) -> tuple[Pool, Counting]:
    inputs = Counting({f"in-{n}": Input(f"in-{n}", "fc", "fu", n, b"", created_ms=1000) for n in range(count)})
    pool = Pool("fu")
    for item in random.Random(7).sample(list(inputs.values()), count):
        pool.add(item)
    return pool, inputs


def test_a_queue_is_emptied_in_order_with_one_look_an_input() -> None:
    pool, inputs = filled(5000)
    order = []
    while pool.count_ready(now_ms=1000):
        (item,) = pool.ready(inputs, now_ms=1000, most=1)
        pool.remove(item)
        order.append(item.idx)
    assert order == list(range(5000))
    assert inputs.looks == 5000


def test_a_retry_waits_for_its_delay_and_keeps_its_place() -> None:
    pool, inputs = filled(3)
    first = inputs["in-0"]
    pool.remove(first)
    first.not_before_ms = 5000
    pool.add(first)
    assert [item.idx for item in pool.ready(inputs, now_ms=4999)] == [1, 2] and pool.count_ready(4999) == 2
    assert [item.idx for item in pool.ready(inputs, now_ms=5000)] == [0, 1, 2] and pool.count_ready(5000) == 3
    pool.remove(first)
    pool.remove(first)      # a cancel and a decision may both take it away
    first.not_before_ms = 0
    pool.add(first)
    pool.add(first)
    assert [item.idx for item in pool.ready(inputs, now_ms=0)] == [0, 1, 2] and pool.count_ready(0) == 3
