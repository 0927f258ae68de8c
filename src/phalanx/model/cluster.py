"""Clusters and their members: one assignment is one life of a cluster's containers on its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar


class Phase(StrEnum):
    """Of an assignment. docs/states.md has the legal transitions, core/states.py the same table in code."""

    PREPARING = "preparing"     # nodes are held, agents prepare
    STARTING = "starting"       # all prepared, committed: containers start and say hello
    RUNNING = "running"         # every rank said hello and reaches its peers: user code may run
    ENDING = "ending"           # ranks are being stopped, or have been told that no more inputs come
    ENDED = "ended"             # every rank confirmed gone, nodes free


class MemberState(StrEnum):
    PREPARING = "preparing"
    PREPARED = "prepared"
    STARTING = "starting"
    HELLO = "hello"             # ContainerHello was received, and is held until all have sent it
    IMPORTING = "importing"     # ContainerHello was answered
    READY = "ready"             # TaskClusterHello was received (clustered), or the first input was asked for
    EXITED = "exited"           # confirmed by its agent, or its node is lost
    RELEASED = "released"       # nothing of it remains


class Cause(StrEnum):
    """Why an assignment ended, in the order in which the first cause is looked for (design rule 4)."""

    NODE = "node"               # node or agent lost, health event
    REFUSED = "refused"         # a node would not start it
    OOM = "oom"
    SIGNAL = "signal"
    EXIT = "exit"               # an exit code without a word
    TIMEOUT = "timeout"         # the function's own
    EXCEPTION = "exception"     # the user's, with traceback
    COLLECTIVE = "collective"   # connection and collective errors: mostly echoes of another rank's end
    STOPPED = "stopped"         # the app, the cluster or a container was stopped by someone
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"     # its nodes were wanted: for a gang that goes first, or drained
    RELEASED = "released"       # the call was decided; the ranks still running were let go
    IDLE = "idle"               # scaled down
    DONE = "done"               # left by itself


@dataclass
class Failure:
    """One report about the end of a rank. `at_ms` is server time, corrected for the agent's clock."""

    cause: str
    rank: int
    at_ms: int
    sentence: str = ""          # for people: "rank 2 (node-2) exited with code 1"
    result: bytes = b""         # the serialized api_pb2.GenericResult the rank sent, if it sent one
    user_fault: bool = True     # charged to the user's retry budget
    input_id: str = ""          # the one input that failed; empty: all that were open
    others: list[str] = field(default_factory=list)     # of a verdict: one line for each other rank, what it was doing


@dataclass
class Member:
    """One rank: a container on a node."""

    KEY: ClassVar = ("assignment", "rank")

    assignment: int
    rank: int
    task_id: str
    node_id: str
    cluster_id: str = ""
    app_id: str = ""
    function_id: str = ""
    task_secret: str = ""
    state: str = MemberState.PREPARING
    ipv6: str = ""
    ipv4: str = ""
    http_address: str = ""      # where the container reaches the control plane's HTTP door (blobs)
    exit_code: int = 0
    exit_signal: int = 0
    oom_killed: bool = False
    sentence: str = ""
    reached: bool = False
    asked: bool = False         # for inputs: it is through import and @enter
    node_lost: bool = False     # nobody will confirm that it is cleaned up
    doing: str = ""             # when the ranks were told to stop: "running the input"
    remains: str = ""           # what its node could not remove
    created_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0


@dataclass
class Assignment:
    """The fencing number and what it stands for. Members are rows of their own."""

    KEY: ClassVar = ("assignment",)

    assignment: int
    cluster_id: str
    app_id: str
    function_id: str
    size: int
    clustered: bool = False
    phase: str = Phase.PREPARING
    gpu_type: str = ""          # the chosen preference
    gpu_choice: int = 0         # its place in Function.ranked
    max_inputs: int = 1
    timeout_ms: int = 0         # of one attempt, from its delivery to the last rank; 0: none
    startup_timeout_ms: int = 0 # from the first barrier to the end of import and @enter on every rank; 0: none
    grace_ms: int = -1          # between interrupt and SIGKILL, as its agents were told; -1: of an older release
    input_id: str = ""          # what it was started for; empty: a warm pool's setting
    attempt: int = 1            # which attempt at that input it was started for
    last_end: str = ""          # why the attempt before it ended
    verdict: Failure | None = None
    failures: list[Failure] = field(default_factory=list)
    stopping: str = ""          # Cause, once ranks are told to stop
    stopped_ms: int = 0
    draining: bool = False      # no more inputs: ranks get the kill switch when they ask
    idle_since_ms: int = 0
    created_ms: int = 0
    running_ms: int = 0
    up_ms: int = 0              # when every rank was through import and @enter; 0: not yet
    first_input_ms: int = 0     # when it took its first; 0: none yet
    out_of_turn: bool = False   # it was started before a call that had come earlier, whose nodes were not all there: its turn is one input
    ended_ms: int = 0


@dataclass
class RankResult:
    """What one rank put for one input."""

    status: str                 # ok, failed, terminated
    result: bytes = b""         # the serialized api_pb2.GenericResult
    data_format: int = 0
    started_s: float = 0.0
    created_s: float = 0.0
    sentence: str = ""


class AttemptState(StrEnum):
    """Follows from what ranks have fetched and put (core/states.py)."""

    DELIVERED = "delivered"     # some ranks have it
    RUNNING = "running"         # every rank took it
    CANCELLING = "cancelling"   # ranks that took it were told; waits for each to be done with it
    DECIDED = "decided"         # its input has its output, or is back in the queue


@dataclass
class Attempt:
    """One delivery of one input to one assignment. Ranks fetch attempts in the order of `position`: inputs in step."""

    KEY: ClassVar = ("input_id", "attempt")

    input_id: str
    attempt: int
    assignment: int
    position: int
    fetched: list[int] = field(default_factory=list)
    results: dict[int, RankResult] = field(default_factory=dict)
    cancelling: bool = False
    decided: bool = False
