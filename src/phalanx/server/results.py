"""What a caller gets for an input that did not return: the status that its client knows, and the text."""

from __future__ import annotations

from modal_proto import api_pb2

from phalanx.model.cluster import Cause, Failure, RankResult

_Status = api_pb2.GenericResult


def terminated(sentence: str) -> RankResult:
    return RankResult("terminated", _result(_Status.GENERIC_STATUS_TERMINATED, sentence or "the call was cancelled"))


def given_up(sentence: str) -> RankResult:
    """No fault of the program, and no budget left."""
    return RankResult("failed", _result(_Status.GENERIC_STATUS_INTERNAL_FAILURE, sentence))


def failed(failure: Failure, last_lines: list[str]) -> RankResult:
    """The rank's own result where it sent one: the client raises what it pickled. Else the first cause, in full."""
    if failure.result:
        return RankResult("failed", failure.result)
    status = _Status.GENERIC_STATUS_TIMEOUT if failure.cause == Cause.TIMEOUT else _Status.GENERIC_STATUS_FAILURE
    return RankResult("failed", _result(status, told(failure, last_lines)))


def told(failure: Failure, last_lines: list[str]) -> str:
    """The cause, what its rank said last, and a line for each other rank."""
    said = ["last lines of its log:", *(f"  {line}" for line in last_lines)] if last_lines else []
    return "\n".join([failure.sentence, *said, *failure.others])


def _result(status: int, sentence: str) -> bytes:
    return api_pb2.GenericResult(status=status, exception=sentence).SerializeToString()  # type: ignore[arg-type]
