"""What a function says about its gangs in `experimental_options`. The client sends every value as text: `True` comes as "True"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from phalanx.model.option_names import MODALS, OURS

MOST_GRACE_S = 3_600.0
MOST_WINDOW_S = 86_400.0


def finish_window_ms(options: Mapping[str, str], otherwise: int = 0) -> int:
    """`finish_window`: seconds that the other ranks have after rank 0 returned. ValueError says what is wrong with it."""
    return _milliseconds(options, "finish_window", MOST_WINDOW_S, otherwise)


def grace_ms(options: Mapping[str, str], otherwise: int = 0) -> int:
    """`grace_period`: seconds between an interrupt and the kill, for exit handlers and checkpoints."""
    return _milliseconds(options, "grace_period", MOST_GRACE_S, otherwise)


def inputs_in_step(options: Mapping[str, str]) -> bool:
    """`inputs_in_step`: False lets each rank fetch its next input by itself."""
    text = options.get("inputs_in_step", "True")
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError(f"inputs_in_step={text!r}: True or False is wanted")
    return text.lower() in ("true", "1")


def priority(options: Mapping[str, str]) -> int:
    """`priority`: whose calls go first, and stop clusters of a lower one."""
    text = options.get("priority", "0")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"priority={text!r}: a whole number is wanted, higher goes first; 0 unless said") from None


def queue_deadline_s(options: Mapping[str, str]) -> float | None:
    """`queue_deadline`: seconds that a call may wait for nodes; 0 or less: without end. None: not said."""
    text = options.get("queue_deadline", "")
    if not text:
        return None
    wrong = f"queue_deadline={text!r}: a number of seconds is wanted, 0 for no deadline"
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(wrong) from None
    if seconds != seconds:      # not a number
        raise ValueError(wrong)
    return seconds


def complaints(options: Mapping[str, str]) -> list[str]:
    """Everything that is wrong with them."""
    found = []
    readers: tuple[Callable[[Mapping[str, str]], object], ...] = (finish_window_ms, grace_ms, inputs_in_step, priority, queue_deadline_s)
    for read in readers:
        try:
            read(options)
        except ValueError as error:
            found.append(str(error))
    return found


def unknown(options: Mapping[str, str]) -> list[str]:
    """A sentence for each key that nobody knows: it changes nothing, and its author should hear of it."""
    known = [*OURS, *MODALS]
    found = []
    for name in sorted(options.keys() - set(known)):
        near = get_close_matches(name.lower(), known, n=1)
        meant = f", did you mean '{near[0]}'?" if near else "."
        found.append(f"there is no '{name}'{meant} It changes nothing. There is {', '.join(OURS)}; of Modal's own, {', '.join(MODALS)}")
    return found


def _milliseconds(options: Mapping[str, str], name: str, most_s: float, otherwise: int) -> int:
    text = options.get(name)
    if text is None:
        return otherwise
    wrong = f"{name}={text!r}: a number of seconds from 0 to {most_s:g} is wanted"
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(wrong) from None
    if not 0 <= seconds <= most_s:      # not a number is in no order either
        raise ValueError(wrong)
    return int(seconds * 1000)
