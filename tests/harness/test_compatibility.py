"""docs/compatibility.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import modal
import pytest

from phalanx.api import compatibility

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def test_the_page_is_what_the_code_says() -> None:
    written = PAGE.read_text()
    if f"of modal {modal.__version__})" not in written:
        pytest.skip(f"modal {modal.__version__} is installed, and the page was made with another version's protocol")
    assert written == compatibility.document(), "run: python -m phalanx.api.compatibility docs/compatibility.md"


def test_every_refusal_names_a_feature_and_not_just_the_rpc() -> None:
    for rpc, state, note in (line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if " | refused | " in line):
        assert state == compatibility.REFUSED
        assert not note.startswith(rpc.removesuffix(" →")), f"{rpc} has no feature: name it in api/features.py"
