"""What happens to a gang, and what it wants done: plain values, so that a story can be replayed (core/gang.py).

Every event about a rank was already matched to the gang's assignment; a message that names another changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.model.cluster import Failure, RankResult

# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Placed:
    """The nodes are held: members have their nodes."""


@dataclass(frozen=True)
class Prepared:
    rank: int
    ipv6: str = ""
    ipv4: str = ""
    http_address: str = ""


@dataclass(frozen=True)
class PrepareRefused:
    rank: int
    code: str
    sentence: str
    user_fault: bool = False


@dataclass(frozen=True)
class PeersReached:
    rank: int
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hello:
    rank: int


@dataclass(frozen=True)
class ClusterHello:
    rank: int


@dataclass(frozen=True)
class Delivered:
    """The server took an input from the queue for this gang."""

    input_id: str
    attempt: int


@dataclass(frozen=True)
class AsksForInputs:
    """The rank is through import and @enter: a plain function says no cluster hello."""

    rank: int


@dataclass(frozen=True)
class Fetched:
    rank: int
    input_id: str


@dataclass(frozen=True)
class Put:
    """A rank's result for one input. `attempt` 0: the sender did not say."""

    rank: int
    input_id: str
    attempt: int
    result: RankResult


@dataclass(frozen=True)
class TaskFailed:
    """TaskResult: the user's module, or @enter, raised."""

    rank: int
    result: bytes
    sentence: str


@dataclass(frozen=True)
class Exited:
    """The agent confirmed the end of a rank. `at_ms` is server time, corrected for the agent's clock."""

    rank: int
    at_ms: int
    code: int = 0
    signal: int = 0
    oom_killed: bool = False
    sentence: str = ""
    never_started: bool = False
    unseen: bool = False        # its shim was gone: no status is known, and it was no fault of the program
    told: bool | None = None    # it had been told to stop before it ended; None: nobody knows


@dataclass(frozen=True)
class NodeLost:
    rank: int
    sentence: str


@dataclass(frozen=True)
class Released:
    rank: int
    remains: str = ""


@dataclass(frozen=True)
class StopAsked:
    """`graceful`: finish what is open, take no more. Otherwise interrupt at once."""

    cause: str
    sentence: str = ""
    graceful: bool = False


@dataclass(frozen=True)
class CancelAsked:
    input_id: str
    terminate: bool = False     # stop the containers too


@dataclass(frozen=True)
class TimerFired:
    """`name` is one of the Timer instruction's names."""

    name: str
    input_id: str = ""
    attempt: int = 0            # a timer of an earlier attempt at the same input changes nothing


Event = (
    Placed | Prepared | PrepareRefused | PeersReached | Hello | ClusterHello | Delivered | AsksForInputs | Fetched | Put | TaskFailed
    | Exited | NodeLost | Released | StopAsked | CancelAsked | TimerFired
)  # fmt: skip

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True)
class Prepare:
    rank: int


@dataclass(frozen=True)
class Start:
    rank: int


@dataclass(frozen=True)
class CheckPeers:
    rank: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class AnswerHellos:
    """The gang is running, in one transaction: user code may begin on every rank."""


@dataclass(frozen=True)
class AnswerClusterHellos:
    """Every rank has imported: rank, cluster and addresses go out."""


@dataclass(frozen=True)
class WakeRanks:
    """Ranks that wait for inputs look again: there is one, or the kill switch."""


@dataclass(frozen=True)
class CancelOnRanks:
    """Through the heartbeats of these ranks."""

    input_id: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class StopRank:
    rank: int
    signal: int
    grace_ms: int
    reason: str


@dataclass(frozen=True)
class Release:
    """Everything of this rank may go: its exit is persisted. Answered by Released."""

    rank: int


@dataclass(frozen=True)
class Decide:
    """The output of an input: from rank 0's result, or from the failure."""

    input_id: str
    attempt: int
    status: str                              # ok, failed, terminated
    result: RankResult | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Requeue:
    """The input goes back to its place in the queue: not its fault.

    `nodes`: those that the end speaks against. `charged`: to the infrastructure budget; not where somebody only stopped its cluster.
    """

    input_id: str
    sentence: str
    nodes: tuple[str, ...] = ()
    charged: bool = True


@dataclass(frozen=True)
class CameThrough:
    """Import and @enter went well on every rank."""


@dataclass(frozen=True)
class FailWaiting:
    """User code fails before it takes an input: what waits for this function fails with it."""

    failure: Failure


@dataclass(frozen=True)
class SetTimer:
    name: str                                # prepare, hello, startup, take, timeout, finish, cancel, drain, linger
    delay_ms: int
    input_id: str = ""
    attempt: int = 0


@dataclass(frozen=True)
class BecameIdle:
    """No input is open: the autoscaler may look."""


@dataclass(frozen=True)
class GangOver:
    """Nothing of the assignment remains; its nodes are free, but those in `dirty` (node rank -> what remains)."""

    dirty: dict[int, str] = field(default_factory=dict)


Instruction = (
    Prepare | Start | CheckPeers | AnswerHellos | AnswerClusterHellos | WakeRanks | CancelOnRanks | StopRank | Release
    | Decide | Requeue | CameThrough | FailWaiting | SetTimer | BecameIdle | GangOver
)  # fmt: skip
