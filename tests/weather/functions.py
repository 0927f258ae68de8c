"""The functions of a simulated world: what they ask for, and what their programs do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from modal_proto import api_pb2

SLOW_S = 90.0       # a model is loaded, say: longer than the shortest startup time-out


@dataclass(frozen=True)
class Program:
    """What one rank does with one attempt at an input."""

    seconds: float
    end: str                    # ok, raise, exit, segv, oom
    stubborn: bool = False      # hears no signal
    cleanup_s: float = 0.0      # after an interrupt


@dataclass
class WeatherFunction:
    name: str
    seed: str
    size: int
    clustered: bool
    timeout_s: int
    retries: int
    concurrent: int = 1
    single_use: bool = False
    trouble: float = 0.0        # probability that an attempt fails by its own fault
    broken: float = 0.0         # probability that an import or @enter fails
    slow: float = 0.0           # probability that they take SLOW_S
    startup_timeout_s: int = 0
    options: dict[str, str] = field(default_factory=dict)
    function_id: str = ""

    def __str__(self) -> str:
        kind = f"size {self.size}" if self.clustered else "plain"
        return f"{self.name}: {kind}, {self.concurrent} inputs, {self.retries} retries, timeout {self.timeout_s} s, {self.options}"

    def program(self, input_id: str, retry: int, rank: int, size: int) -> Program:
        """The same for all ranks of an attempt, but for who fails."""
        dice = random.Random(f"{self.seed} {input_id} {retry}")
        seconds = min(dice.lognormvariate(4.0, 1.5), self.timeout_s * 0.5)
        slow, stubborn = dice.random() < 0.05, dice.random() < 0.03
        cleanup_s = dice.choice([0.0, 0.5, 10.0, 100.0])
        if dice.random() >= self.trouble:
            late = rank > 0 and dice.random() < 0.1
            return Program(seconds * (1.3 if late else 1.0), "ok", stubborn, cleanup_s)
        culprit, end = dice.randrange(size), dice.choice(["raise", "exit", "segv", "oom", "hang"])
        if end == "hang":
            return Program(self.timeout_s * 100.0, "ok", stubborn, cleanup_s)
        if rank == culprit:
            return Program(seconds * dice.uniform(0.1, 1), end, stubborn, cleanup_s)
        return Program(self.timeout_s * 100.0 if slow or size > 1 else seconds, "ok", stubborn, cleanup_s)

    def import_s(self, dice: random.Random) -> float:
        """How long import and @enter take on one rank."""
        return SLOW_S if dice.random() < self.slow else dice.uniform(0, 3)

    @property
    def startup_limit_s(self) -> int:
        return self.startup_timeout_s or self.timeout_s

    def leaves(self, input_id: str, retry: int, rank: int) -> str:
        """What its process does after this input: mostly it asks for the next."""
        return random.Random(f"leaves {self.seed} {input_id} {retry} {rank}").choices(["", "stop"], [0.97, 0.03])[0]

    def hangs(self, input_id: str, retry: int) -> bool:
        """Does this attempt run out of its time by itself?"""
        programs = [self.program(input_id, retry, rank, self.size) for rank in range(self.size)]
        return any(program.seconds >= self.timeout_s for program in programs)


def some_function(dice: random.Random, name: str, seed: int, largest: int) -> tuple[WeatherFunction, Any]:
    """One that a user may write, and its definition as the client sends it."""
    clustered = dice.random() < 0.7
    function = WeatherFunction(
        name, f"{seed}", dice.randint(1, largest) if clustered else 1, clustered,
        dice.choice([60, 600, 3600, 7200]), dice.choice([0, 0, 1, 3]), concurrent=dice.choice([1, 1, 1, 1, 2] if clustered else [1, 1, 4]),
        trouble=dice.choice([0.0, 0.1, 0.5]), broken=dice.choices([0.0, 0.3, 1.0], [0.85, 0.1, 0.05])[0],
        slow=dice.choices([0.0, 0.2], [0.8, 0.2])[0], startup_timeout_s=dice.choice([0, 0, 0, 30, 300]),
    )  # fmt: skip
    for option, likely, values in (
        ("priority", 0.3, ["10", "-5"]), ("inputs_in_step", 0.15, ["False"]), ("grace_period", 0.2, ["2", "120"]),
        ("finish_window", 0.2, ["0", "60"]), ("queue_deadline", 0.2, ["30", "1800"]),
    ):  # fmt: skip
        if dice.random() < likely:
            function.options[option] = dice.choice(values)
    if dice.random() < 0.15:
        function.single_use = True
    definition = api_pb2.Function(
        module_name="weather", function_name=name, function_type=api_pb2.Function.FUNCTION_TYPE_FUNCTION,
        timeout_secs=function.timeout_s, startup_timeout_secs=function.startup_timeout_s, experimental_options=function.options,
        single_use_containers=function.single_use,
        retry_policy=api_pb2.FunctionRetryPolicy(
            retries=function.retries, initial_delay_ms=dice.choice([0, 1000, 60_000]), backoff_coefficient=dice.choice([1.0, 2.0]),
            max_delay_ms=60_000),
    )  # fmt: skip
    if clustered:
        definition._experimental_group_size = function.size
        definition.i6pn_enabled = True
        definition.resources.gpu_config.gpu_type, definition.resources.gpu_config.count = "H100", 8
    if function.concurrent > 1:
        definition.max_concurrent_inputs = definition.target_concurrent_inputs = function.concurrent
    if dice.random() < 0.2:     # once it is deployed, as many are warm
        definition.warm_pool_size = function.size
    if dice.random() < 0.3:
        definition.task_idle_timeout_secs = dice.choice([2, 600])
    return function, definition
