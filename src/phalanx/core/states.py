"""The legal transitions, as docs/states.md shows them. An illegal one is a bug and raises."""

from __future__ import annotations

from phalanx.model.app import App, AppState
from phalanx.model.cluster import Assignment, Attempt, AttemptState, Member, MemberState, Phase
from phalanx.model.node import ByHand, NodeRecord
from phalanx.model.work import Call, CallState, Input, InputState

PHASES: dict[str, frozenset[str]] = {
    Phase.PREPARING: frozenset({Phase.STARTING, Phase.ENDING}),      # all prepared, committed · refused, stopped
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.ENDING}),        # all said hello and reach each other · failed, stopped
    Phase.RUNNING: frozenset({Phase.ENDING}),                        # decided, failed, stopped, idle
    Phase.ENDING: frozenset({Phase.ENDED}),                          # every rank confirmed gone and cleaned up
    Phase.ENDED: frozenset(),
}

MEMBERS: dict[str, frozenset[str]] = {
    MemberState.PREPARING: frozenset({MemberState.PREPARED, MemberState.EXITED}),
    MemberState.PREPARED: frozenset({MemberState.STARTING, MemberState.EXITED}),
    MemberState.STARTING: frozenset({MemberState.HELLO, MemberState.EXITED}),
    MemberState.HELLO: frozenset({MemberState.IMPORTING, MemberState.EXITED}),
    MemberState.IMPORTING: frozenset({MemberState.READY, MemberState.EXITED}),
    MemberState.READY: frozenset({MemberState.EXITED}),
    MemberState.EXITED: frozenset({MemberState.RELEASED}),
    MemberState.RELEASED: frozenset(),
}

ATTEMPTS: dict[str, frozenset[str]] = {
    AttemptState.DELIVERED: frozenset({AttemptState.RUNNING, AttemptState.CANCELLING, AttemptState.DECIDED}),
    AttemptState.RUNNING: frozenset({AttemptState.CANCELLING, AttemptState.DECIDED}),
    AttemptState.CANCELLING: frozenset({AttemptState.DECIDED}),
    AttemptState.DECIDED: frozenset(),
}

INPUTS: dict[str, frozenset[str]] = {
    InputState.PENDING: frozenset({InputState.RUNNING, InputState.DONE}),
    InputState.RUNNING: frozenset({InputState.PENDING, InputState.CANCELLING, InputState.DONE}),
    InputState.CANCELLING: frozenset({InputState.DONE}),
    InputState.DONE: frozenset(),
}

CALLS: dict[str, frozenset[str]] = {
    CallState.OPEN: frozenset({CallState.CANCELLING, CallState.DONE}),
    CallState.CANCELLING: frozenset({CallState.DONE}),
    CallState.DONE: frozenset(),
}

APPS: dict[int, frozenset[AppState]] = {
    AppState.EPHEMERAL: frozenset({AppState.STOPPING}),                                      # its client left
    AppState.DETACHED: frozenset({AppState.DETACHED_DISCONNECTED, AppState.STOPPING}),       # its client left: with, without open work
    AppState.DETACHED_DISCONNECTED: frozenset({AppState.DETACHED, AppState.STOPPING}),       # its client is back · its work has ended
    AppState.INITIALIZING: frozenset({AppState.DEPLOYED, AppState.STOPPING}),                # published · its deployment failed
    AppState.DEPLOYED: frozenset({AppState.STOPPING}),
    AppState.STOPPING: frozenset({AppState.STOPPED}),                                        # nothing of it runs, all logs are in
    AppState.STOPPED: frozenset(),
}

NODES: dict[str, frozenset[str]] = {
    ByHand.SERVING: frozenset({ByHand.CORDONED, ByHand.DRAINING}),
    ByHand.CORDONED: frozenset({ByHand.SERVING, ByHand.DRAINING}),
    ByHand.DRAINING: frozenset({ByHand.SERVING, ByHand.DRAINED}),                            # uncordon · nothing is left on it
    ByHand.DRAINED: frozenset({ByHand.SERVING}),
}


class IllegalTransition(Exception):
    """A machine tried what its table does not allow."""


def move_assignment(assignment: Assignment, to: Phase) -> None:
    """Change the phase; raises IllegalTransition where the table has no such edge."""
    _check(PHASES, assignment.phase, to, f"assignment {assignment.assignment}")
    assignment.phase = to


def move_member(member: Member, to: MemberState) -> None:
    """Change a member's state; raises IllegalTransition where the table has no such edge."""
    _check(MEMBERS, member.state, to, f"assignment {member.assignment} rank {member.rank}")
    member.state = to


def state_of(attempt: Attempt, size: int) -> AttemptState:
    """Where an attempt is, in a cluster of `size`."""
    if attempt.decided:
        return AttemptState.DECIDED
    if attempt.cancelling:
        return AttemptState.CANCELLING
    return AttemptState.RUNNING if len(attempt.fetched) == size else AttemptState.DELIVERED


def check_attempt(attempt: Attempt, was: AttemptState, now: AttemptState) -> None:
    """Raises IllegalTransition where the table has no such edge."""
    if now != was:
        _check(ATTEMPTS, was, now, f"attempt {attempt.attempt} of {attempt.input_id}")


def move_input(item: Input, to: InputState) -> None:
    """Change an input's state; raises IllegalTransition where the table has no such edge."""
    _check(INPUTS, item.state, to, f"input {item.input_id}")
    item.state = to


def move_call(call: Call, to: CallState) -> None:
    """Change a call's state; raises IllegalTransition where the table has no such edge."""
    _check(CALLS, call.state, to, f"call {call.call_id}")
    call.state = to


def move_app(app: App, to: AppState) -> None:
    """Change an app's state; raises IllegalTransition where the table has no such edge."""
    if to not in APPS[app.state]:
        raise IllegalTransition(f"app {app.app_id}: {AppState(app.state).name} -> {to.name}")
    app.state = to


def move_node(node: NodeRecord, to: ByHand) -> None:
    """Change what a person decided about a node; raises IllegalTransition where the table has no such edge."""
    _check(NODES, node.by_hand, to, f"node {node.node_id}")
    node.by_hand = to


def _check(table: dict[str, frozenset[str]], was: str, to: str, what: str) -> None:
    if to not in table[was]:
        raise IllegalTransition(f"{what}: {was} -> {to}")
