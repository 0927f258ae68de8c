"""What the server says when it will not do a thing: a kind that maps to one gRPC status, and a sentence for the user."""

from __future__ import annotations

from enum import StrEnum


class RefusalKind(StrEnum):
    """Each becomes one status in api/transport.py, and one exception type in the client (reference: protocol.md, Transport)."""

    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    INVALID = "invalid"
    CONFLICT = "conflict"
    EXHAUSTED = "exhausted"
    UNAUTHENTICATED = "unauthenticated"
    DENIED = "denied"
    UNIMPLEMENTED = "unimplemented"


class Refusal(Exception):
    """A user's mistake or a limit: the sentence says what was wrong, with which value, and what to do."""

    def __init__(self, kind: RefusalKind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.sentence = sentence


def not_found(what: str, name: str, hint: str = "") -> Refusal:
    """`what` named `name` is not here."""
    return Refusal(RefusalKind.NOT_FOUND, f"{what} '{name}' not found{'. ' + hint if hint else ''}")


def invalid(sentence: str) -> Refusal:
    """A value that can't be accepted."""
    return Refusal(RefusalKind.INVALID, sentence)
