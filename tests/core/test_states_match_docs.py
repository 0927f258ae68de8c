"""docs/states.md and core/states.py say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phalanx.core.states import APPS, MEMBERS, NODES, PHASES, IllegalTransition, move_app
from phalanx.model.app import App, AppState

DOCS = Path(__file__).parents[2] / "docs" / "states.md"


def edges_in_docs(heading: str) -> set[tuple[str, str]]:
    section = re.search(rf"^## {heading}.*?(?=^## |\Z)", DOCS.read_text(), re.S | re.M)
    assert section is not None
    return set(re.findall(r"^\| (\w+) \| (\w+) \|", section.group(0), re.M)) - {("from", "to")}


def edges(table: dict[str, frozenset[str]]) -> set[tuple[str, str]]:
    return {(str(origin), str(target)) for origin, targets in table.items() for target in targets}


def test_the_assignment_table_is_the_documented_one() -> None:
    assert edges(PHASES) == edges_in_docs("Assignment")


def test_the_member_table_is_the_documented_one() -> None:
    assert edges(MEMBERS) == edges_in_docs("Member")


def test_the_app_table_is_the_documented_one() -> None:
    named = {(AppState(origin).name.lower(), target.name.lower()) for origin, targets in APPS.items() for target in targets}
    assert named == edges_in_docs("App")


def test_the_node_table_is_the_documented_one() -> None:
    assert edges(NODES) == edges_in_docs("Node")


def test_a_stopped_app_never_runs_again() -> None:
    app = App("ap-1", "main", state=AppState.STOPPED)
    for state in AppState:
        with pytest.raises(IllegalTransition, match="ap-1: STOPPED -> "):
            move_app(app, state)
