"""The times of a gang: the fleet's, and what its function says for itself."""

from __future__ import annotations

from phalanx.config import Config
from phalanx.core import options
from phalanx.core.gang import GangPolicy
from phalanx.model.work import Function


def policy_of(config: Config, function: Function | None) -> GangPolicy:
    """`experimental_options={"finish_window": 2.5, "grace_period": 60, "inputs_in_step": False}` are the function's own."""
    said = function.options if function is not None else {}
    try:
        return GangPolicy(
            finish_window_ms=options.finish_window_ms(said, config.finish_window_ms),
            grace_ms=options.grace_ms(said, config.grace_ms),
            prepare_timeout_ms=config.prepare_timeout_ms,
            hello_timeout_ms=config.hello_timeout_ms,
            in_step=options.inputs_in_step(said),
        )
    except ValueError:      # of an older release, which did not refuse it
        return policy_of(config, None)
