"""docs/states.md and core/states.py say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phalanx.core.states import APPS, ATTEMPTS, CALLS, INPUTS, MEMBERS, NODES, PHASES, IllegalTransition, move_app, move_input
from phalanx.model.app import App, AppState
from phalanx.model.cluster import AttemptState
from phalanx.model.node import ByHand
from phalanx.model.work import CallState, Input, InputState

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


@pytest.mark.parametrize(("table", "heading"), [(ATTEMPTS, "Attempt"), (INPUTS, "Input"), (CALLS, "Call")])
def test_the_tables_of_work_are_the_documented_ones(table: dict[str, frozenset[str]], heading: str) -> None:
    assert edges(table) == edges_in_docs(heading)


def test_every_state_has_its_row_in_the_table() -> None:
    for table, states in ((ATTEMPTS, AttemptState), (INPUTS, InputState), (CALLS, CallState), (NODES, ByHand)):
        assert set(table) == set(states)


def test_a_done_input_is_never_taken_up_again() -> None:
    item = Input("in-1", "fc-1", "fu-1", 0, state=InputState.DONE)
    for state in InputState:
        with pytest.raises(IllegalTransition, match="in-1: done -> "):
            move_input(item, state)


def test_a_stopped_app_never_runs_again() -> None:
    app = App("ap-1", "main", state=AppState.STOPPED)
    for state in AppState:
        with pytest.raises(IllegalTransition, match="ap-1: STOPPED -> "):
            move_app(app, state)
