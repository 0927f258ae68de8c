"""The program behind the Ray peer, in the interpreter that has ray: a cluster of N nodes on this machine, and one placement group a round.

python ray_driver.py NODES          with $RAY_TMPDIR, where Ray writes everything
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from peers.driver import answer_lines


def rank(runner: bool) -> float:
    import time

    if runner:
        import modal._container_entrypoint  # noqa: F401
    return time.monotonic()


FRESH = ray.remote(num_cpus=1, max_calls=1)(rank)      # a process that is new, or was started ahead and has run nothing
WARM = ray.remote(num_cpus=1)(rank)                     # workers that have run it before


class Rounds:
    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}

    def answer(self, size: int, runner: bool, warm: bool) -> dict[str, float]:
        if warm:
            return self._warm(size, runner)
        called = time.monotonic()
        group = placement_group([{"CPU": 1}] * size, strategy="STRICT_SPREAD")
        stamps = ray.get(self._tasks(FRESH, group, size, runner))
        done = time.monotonic()
        remove_placement_group(group)
        return {"in_code": max(stamps) - called, "result": done - called}

    def _warm(self, size: int, runner: bool) -> dict[str, float]:
        """In a group that stays, as a warm cluster does."""
        if size not in self._kept:
            self._kept[size] = placement_group([{"CPU": 1}] * size, strategy="STRICT_SPREAD")
            ray.get(self._tasks(WARM, self._kept[size], size, runner))
        called = time.monotonic()
        stamps = ray.get(self._tasks(WARM, self._kept[size], size, runner))
        done = time.monotonic()
        return {"in_code": max(stamps) - called, "result": done - called}

    def _tasks(self, function: Any, group: Any, size: int, runner: bool) -> list[Any]:
        places = [PlacementGroupSchedulingStrategy(group, index) for index in range(size)]
        return [function.options(scheduling_strategy=place).remote(runner) for place in places]


def main() -> None:
    nodes = int(sys.argv[1])
    options = {"num_cpus": 1, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    for _ in range(nodes - 1):
        cluster.add_node(wait=False, **options)
    cluster.wait_for_nodes(timeout=120)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        answer_lines(Rounds().answer)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
