"""`priority` and `queue_deadline` that are no numbers were taken for 0 and for none, without a word."""

from __future__ import annotations

import pytest

from phalanx.core.options import complaints


@pytest.mark.parametrize("options", [{"priority": "10"}, {"priority": "-1"}, {"queue_deadline": "2.5"}, {"queue_deadline": "0"}, {}])
def test_numbers_are_taken(options: dict[str, str]) -> None:
    assert complaints(options) == []


@pytest.mark.parametrize("name, value", [
    ("priority", "high"), ("priority", "1.5"), ("priority", ""), ("queue_deadline", "10 min"), ("queue_deadline", "nan"),
])  # fmt: skip
def test_what_is_no_number_is_refused_with_its_value(name: str, value: str) -> None:
    [complaint] = complaints({name: value})
    assert complaint.startswith(f"{name}={value!r}: a ") and "wanted" in complaint
