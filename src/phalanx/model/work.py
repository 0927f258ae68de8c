"""Functions, calls, inputs, outputs: what the client asked for. Rows of the store; ids as the client knows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar


@dataclass
class Function:
    """One function of one app, or one parameter set of a class (`bound_to` names the class's function then).

    `definition` is the serialized api_pb2.Function with common fields merged; `data` the serialized FunctionData the
    client sent, if it sent one. All other fields are what the deciding rooms need, read out of the definition once.
    """

    KEY: ClassVar = ("function_id",)

    function_id: str
    app_id: str
    name: str                                   # "hello", "Trainer.*"
    definition_id: str = ""
    definition: bytes = b""
    data: bytes = b""
    bound_to: str = ""
    serialized_params: bytes = b""
    size: int = 1                               # nodes of a cluster; 1 for a plain function
    clustered: bool = False                     # whole nodes, ranks, fail together
    rdma: bool = False
    fabric_size: int = 0
    gpus: list[list[object]] = field(default_factory=list)   # ordered preference: [type, count, exact]; empty: no GPU
    ranked: list[bytes] = field(default_factory=list)        # per preference: the serialized api_pb2.Function to run with
    cpu_milli: int = 125
    cpu_limit_milli: int = 0
    memory_mib: int = 128
    memory_limit_mib: int = 0
    timeout_s: int = 300
    startup_timeout_s: int = 0                  # 0: as timeout
    max_inputs: int = 1                         # inputs open at once per cluster; above 1 by @concurrent
    min_nodes: int = 0                          # autoscaler settings count nodes
    max_nodes: int = 0                          # 0: no limit
    buffer_nodes: int = 0
    scaledown_s: int = 60
    retries: int = 0
    retry_initial_ms: int = 1000
    retry_backoff: float = 1.0
    retry_max_ms: int = 60_000
    is_generator: bool = False
    private_network: bool = False
    block_network: bool = False
    image_id: str = ""
    mount_ids: list[str] = field(default_factory=list)
    secret_ids: list[str] = field(default_factory=list)     # the later wins where two have one variable
    options: dict[str, str] = field(default_factory=dict)    # experimental_options
    region: list[str] = field(default_factory=list)
    client_version: str = ""
    published: bool = False                     # part of a deployed app: warm pools may start
    created_ms: int = 0
    bind_options: bytes = b""                   # of a bound function: the serialized api_pb2.FunctionOptions, if any
    is_class: bool = False                      # the service function of a class
    methods: list[str] = field(default_factory=list)         # of a class
    single_use: bool = False                    # a cluster takes one input and is not used again
    batch_max_size: int = 0                     # above 0: @modal.batched
    disk_mib: int = 0
    zone: str = ""
    instance_types: list[str] = field(default_factory=list)
    cloud: str = ""
    environment: str = ""                       # the app's
    autoscaler_override: bytes = b""            # the serialized AutoscalerSettings set since the last deploy


class CallState(StrEnum):
    OPEN = "open"
    CANCELLING = "cancelling"
    DONE = "done"


@dataclass
class Call:
    """One FunctionMap: a single call, a map, a spawn."""

    KEY: ClassVar = ("call_id",)

    call_id: str
    function_id: str
    app_id: str
    kind: int = 1                               # api_pb2.FunctionCallType: UNARY 1, MAP 2
    invocation: int = 0                         # api_pb2.FunctionCallInvocationType
    parent_input_id: str = ""
    return_exceptions: bool = False
    state: str = CallState.OPEN
    inputs_finished: bool = False               # no more inputs will come
    num_inputs: int = 0
    num_outputs: int = 0
    created_ms: int = 0


class InputState(StrEnum):
    PENDING = "pending"                         # waits for a cluster
    RUNNING = "running"                         # delivered to at least one rank
    CANCELLING = "cancelling"                   # until every rank is confirmed done with it
    DONE = "done"


@dataclass
class Input:
    """One input of a call. `attempt` counts its deliveries to assignments from 1; 0 before the first."""

    KEY: ClassVar = ("input_id",)

    input_id: str
    call_id: str
    function_id: str
    idx: int
    payload: bytes = b""                        # the serialized api_pb2.FunctionInput
    state: str = InputState.PENDING
    attempt: int = 0
    user_failures: int = 0                      # of the user's retry budget
    infra_failures: int = 0                     # of the infrastructure budget
    unpaid_restarts: int = 0                    # its cluster was stopped for something else: no budget pays
    assignment: int = 0                         # of the latest attempt
    created_ms: int = 0                         # its place in the queue, kept over every restart
    started_ms: int = 0
    not_before_ms: int = 0                      # a retry's delay
    last_end: str = ""                          # why the latest attempt ended
    excluded_nodes: list[str] = field(default_factory=list)     # nodes that an earlier attempt's end speaks against
    queued_ms: int = 0                          # since when it waits for a cluster this time
    evictions: int = 0                          # how often others were stopped so that it starts
    preemptions: int = 0                        # how often it was stopped for others


@dataclass
class Output:
    """The decided result of an input. `seq` orders a call's outputs as they were decided, from 1."""

    KEY: ClassVar = ("input_id",)

    input_id: str
    call_id: str
    idx: int
    seq: int
    result: bytes = b""                         # the serialized api_pb2.GenericResult
    data_format: int = 0
    task_id: str = ""
    started_s: float = 0.0
    created_s: float = 0.0


@dataclass
class Chunk:
    """One piece of a generator's output, from 1."""

    KEY: ClassVar = ("call_id", "index")

    call_id: str
    index: int
    payload: bytes = b""                        # the serialized api_pb2.DataChunk
