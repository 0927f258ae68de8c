"""What a function says about its gangs in experimental_options, as the client sends it: text."""

from __future__ import annotations

import pytest

from phalanx.core import options


def test_seconds_are_read_as_the_client_writes_them() -> None:
    assert options.grace_ms({"grace_period": "5"}, 30_000) == 5_000
    assert options.grace_ms({"grace_period": "0.25"}, 30_000) == 250
    assert options.grace_ms({}, 30_000) == 30_000
    assert options.finish_window_ms({"finish_window": "0"}, 10_000) == 0


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "3601"])
def test_what_is_no_number_of_seconds_is_named_with_its_value(text: str) -> None:
    (complaint,) = options.complaints({"grace_period": text})
    assert complaint == f"grace_period='{text}': a number of seconds from 0 to 3600 is wanted"


@pytest.mark.parametrize(("text", "in_step"), [("True", True), ("False", False), ("0", False), ("1", True)])
def test_the_switch_of_inputs_in_step(text: str, in_step: bool) -> None:
    assert options.inputs_in_step({"inputs_in_step": text}) is in_step


def test_other_options_pass() -> None:
    assert options.complaints({"efa_enabled": "True", "priority": "3"}) == []
    assert options.complaints({"inputs_in_step": "maybe"}) == ["inputs_in_step='maybe': True or False is wanted"]


def test_a_key_that_nobody_knows_is_named_with_the_nearest_one_and_all_there_are() -> None:
    (sentence,) = options.unknown({"priorty": "10", "grace_period": "5", "efa_enabled": "True", "flash": "us-east"})
    assert sentence.startswith("there is no 'priorty', did you mean 'priority'? It changes nothing. There is finish_window, ")
    (sentence,) = options.unknown({"x": "1"})
    assert sentence.startswith("there is no 'x'. It changes nothing. ")
