from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromAgent(_message.Message):
    __slots__ = ("register", "heartbeat", "prepared", "started", "reached", "logs", "exited", "released", "logs_marked", "node_state")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    LOGS_MARKED_FIELD_NUMBER: _ClassVar[int]
    NODE_STATE_FIELD_NUMBER: _ClassVar[int]
    register: Register
    heartbeat: Heartbeat
    prepared: Prepared
    started: Started
    reached: Reached
    logs: Logs
    exited: Exited
    released: Released
    logs_marked: LogsMarked
    node_state: NodeState
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., reached: _Optional[_Union[Reached, _Mapping]] = ..., logs: _Optional[_Union[Logs, _Mapping]] = ..., exited: _Optional[_Union[Exited, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., logs_marked: _Optional[_Union[LogsMarked, _Mapping]] = ..., node_state: _Optional[_Union[NodeState, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("protocol_version", "agent_id", "boot_id", "engine", "nodes", "adopted", "secret", "peer_address", "boottime_ms")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_MS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    agent_id: str
    boot_id: str
    engine: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeFacts]
    adopted: _containers.RepeatedCompositeFieldContainer[Adopted]
    secret: str
    peer_address: str
    boottime_ms: int
    def __init__(self, protocol_version: _Optional[int] = ..., agent_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., engine: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeFacts, _Mapping]]] = ..., adopted: _Optional[_Iterable[_Union[Adopted, _Mapping]]] = ..., secret: _Optional[str] = ..., peer_address: _Optional[str] = ..., boottime_ms: _Optional[int] = ...) -> None: ...

class NodeFacts(_message.Message):
    __slots__ = ("node_id", "hostname", "gpu_type", "gpu_count", "cpu_milli", "memory_mib", "simulated", "rdma", "region", "zone", "network", "block", "rack", "fabric_id", "runtime", "runtime_reason", "guarantees", "python_versions", "unschedulable", "shared_only")
    class GuaranteesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    RDMA_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    FABRIC_ID_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_REASON_FIELD_NUMBER: _ClassVar[int]
    GUARANTEES_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULABLE_FIELD_NUMBER: _ClassVar[int]
    SHARED_ONLY_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    hostname: str
    gpu_type: str
    gpu_count: int
    cpu_milli: int
    memory_mib: int
    simulated: bool
    rdma: bool
    region: str
    zone: str
    network: str
    block: str
    rack: str
    fabric_id: str
    runtime: str
    runtime_reason: str
    guarantees: _containers.ScalarMap[str, str]
    python_versions: _containers.RepeatedScalarFieldContainer[str]
    unschedulable: str
    shared_only: bool
    def __init__(self, node_id: _Optional[str] = ..., hostname: _Optional[str] = ..., gpu_type: _Optional[str] = ..., gpu_count: _Optional[int] = ..., cpu_milli: _Optional[int] = ..., memory_mib: _Optional[int] = ..., simulated: _Optional[bool] = ..., rdma: _Optional[bool] = ..., region: _Optional[str] = ..., zone: _Optional[str] = ..., network: _Optional[str] = ..., block: _Optional[str] = ..., rack: _Optional[str] = ..., fabric_id: _Optional[str] = ..., runtime: _Optional[str] = ..., runtime_reason: _Optional[str] = ..., guarantees: _Optional[_Mapping[str, str]] = ..., python_versions: _Optional[_Iterable[str]] = ..., unschedulable: _Optional[str] = ..., shared_only: _Optional[bool] = ...) -> None: ...

class NodeState(_message.Message):
    __slots__ = ("node_id", "unschedulable")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULABLE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    unschedulable: str
    def __init__(self, node_id: _Optional[str] = ..., unschedulable: _Optional[str] = ...) -> None: ...

class Adopted(_message.Message):
    __slots__ = ("assignment", "rank", "task_id", "node_id", "ended")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    task_id: str
    node_id: str
    ended: bool
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., task_id: _Optional[str] = ..., node_id: _Optional[str] = ..., ended: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("boottime_ms", "answered_ms", "said_away_ms")
    BOOTTIME_MS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_MS_FIELD_NUMBER: _ClassVar[int]
    SAID_AWAY_MS_FIELD_NUMBER: _ClassVar[int]
    boottime_ms: int
    answered_ms: int
    said_away_ms: int
    def __init__(self, boottime_ms: _Optional[int] = ..., answered_ms: _Optional[int] = ..., said_away_ms: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("assignment", "rank", "refusal", "ipv6", "ipv4", "http_address")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    IPV6_FIELD_NUMBER: _ClassVar[int]
    IPV4_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    refusal: Refusal
    ipv6: str
    ipv4: str
    http_address: str
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., ipv6: _Optional[str] = ..., ipv4: _Optional[str] = ..., http_address: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "sentence", "user_fault")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    USER_FAULT_FIELD_NUMBER: _ClassVar[int]
    code: str
    sentence: str
    user_fault: bool
    def __init__(self, code: _Optional[str] = ..., sentence: _Optional[str] = ..., user_fault: _Optional[bool] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("assignment", "rank", "boottime_ms")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_MS_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    boottime_ms: int
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., boottime_ms: _Optional[int] = ...) -> None: ...

class Reached(_message.Message):
    __slots__ = ("assignment", "rank", "unreachable")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    unreachable: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., unreachable: _Optional[_Iterable[str]] = ...) -> None: ...

class Logs(_message.Message):
    __slots__ = ("assignment", "rank", "offset", "records", "end_offset")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    offset: int
    records: _containers.RepeatedCompositeFieldContainer[LogRecord]
    end_offset: int
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., offset: _Optional[int] = ..., records: _Optional[_Iterable[_Union[LogRecord, _Mapping]]] = ..., end_offset: _Optional[int] = ...) -> None: ...

class LogsMarked(_message.Message):
    __slots__ = ("assignment", "rank", "number")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    number: int
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class LogRecord(_message.Message):
    __slots__ = ("stream", "time_ns", "data")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    stream: int
    time_ns: int
    data: bytes
    def __init__(self, stream: _Optional[int] = ..., time_ns: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Exited(_message.Message):
    __slots__ = ("assignment", "rank", "code", "signal", "oom_killed", "memory_limit_mib", "memory_peak_mib", "log_end_offset", "boottime_ms", "sentence", "never_started", "unseen", "fenced", "unkillable", "stopped")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    OOM_KILLED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_MIB_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_MS_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    NEVER_STARTED_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    UNKILLABLE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    code: int
    signal: int
    oom_killed: bool
    memory_limit_mib: int
    memory_peak_mib: int
    log_end_offset: int
    boottime_ms: int
    sentence: str
    never_started: bool
    unseen: bool
    fenced: str
    unkillable: bool
    stopped: bool
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., code: _Optional[int] = ..., signal: _Optional[int] = ..., oom_killed: _Optional[bool] = ..., memory_limit_mib: _Optional[int] = ..., memory_peak_mib: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., boottime_ms: _Optional[int] = ..., sentence: _Optional[str] = ..., never_started: _Optional[bool] = ..., unseen: _Optional[bool] = ..., fenced: _Optional[str] = ..., unkillable: _Optional[bool] = ..., stopped: _Optional[bool] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("assignment", "rank", "remains")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REMAINS_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    remains: str
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., remains: _Optional[str] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("welcome", "prepare", "start", "check_peers", "stop", "release", "ack_logs", "beat_answer", "peers", "mark_logs")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CHECK_PEERS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ACK_LOGS_FIELD_NUMBER: _ClassVar[int]
    BEAT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    MARK_LOGS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    prepare: Prepare
    start: Start
    check_peers: CheckPeers
    stop: Stop
    release: Release
    ack_logs: AckLogs
    beat_answer: BeatAnswer
    peers: Peers
    mark_logs: MarkLogs
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., check_peers: _Optional[_Union[CheckPeers, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., ack_logs: _Optional[_Union[AckLogs, _Mapping]] = ..., beat_answer: _Optional[_Union[BeatAnswer, _Mapping]] = ..., peers: _Optional[_Union[Peers, _Mapping]] = ..., mark_logs: _Optional[_Union[MarkLogs, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "heartbeat_ms", "outage_limit_ms", "refusal", "workspace_prefix", "lease_ms", "silent_ms")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    OUTAGE_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_PREFIX_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    heartbeat_ms: int
    outage_limit_ms: int
    refusal: str
    workspace_prefix: str
    lease_ms: int
    silent_ms: int
    def __init__(self, protocol_version: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ..., outage_limit_ms: _Optional[int] = ..., refusal: _Optional[str] = ..., workspace_prefix: _Optional[str] = ..., lease_ms: _Optional[int] = ..., silent_ms: _Optional[int] = ...) -> None: ...

class MarkLogs(_message.Message):
    __slots__ = ("assignment", "rank", "number")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    number: int
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class BeatAnswer(_message.Message):
    __slots__ = ("boottime_ms",)
    BOOTTIME_MS_FIELD_NUMBER: _ClassVar[int]
    boottime_ms: int
    def __init__(self, boottime_ms: _Optional[int] = ...) -> None: ...

class Peers(_message.Message):
    __slots__ = ("assignment", "size", "peers")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    size: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, assignment: _Optional[int] = ..., size: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("rank", "node_id", "agent_id", "address")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node_id: str
    agent_id: str
    address: str
    def __init__(self, rank: _Optional[int] = ..., node_id: _Optional[str] = ..., agent_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("assignment", "rank", "size", "node_id", "task_id", "cluster_id", "app_id", "function_name", "task_secret", "python_version", "layer_ids", "environment", "command", "container_arguments", "cpu_milli", "cpu_limit_milli", "memory_mib", "memory_limit_mib", "gpu_type", "gpu_count", "private_network", "block_network", "grace_ms")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    APP_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_NAME_FIELD_NUMBER: _ClassVar[int]
    TASK_SECRET_FIELD_NUMBER: _ClassVar[int]
    PYTHON_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAYER_IDS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    CPU_LIMIT_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_MIB_FIELD_NUMBER: _ClassVar[int]
    GPU_TYPE_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_NETWORK_FIELD_NUMBER: _ClassVar[int]
    BLOCK_NETWORK_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    size: int
    node_id: str
    task_id: str
    cluster_id: str
    app_id: str
    function_name: str
    task_secret: str
    python_version: str
    layer_ids: _containers.RepeatedScalarFieldContainer[str]
    environment: _containers.ScalarMap[str, str]
    command: _containers.RepeatedScalarFieldContainer[str]
    container_arguments: bytes
    cpu_milli: int
    cpu_limit_milli: int
    memory_mib: int
    memory_limit_mib: int
    gpu_type: str
    gpu_count: int
    private_network: bool
    block_network: bool
    grace_ms: int
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ..., node_id: _Optional[str] = ..., task_id: _Optional[str] = ..., cluster_id: _Optional[str] = ..., app_id: _Optional[str] = ..., function_name: _Optional[str] = ..., task_secret: _Optional[str] = ..., python_version: _Optional[str] = ..., layer_ids: _Optional[_Iterable[str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., command: _Optional[_Iterable[str]] = ..., container_arguments: _Optional[bytes] = ..., cpu_milli: _Optional[int] = ..., cpu_limit_milli: _Optional[int] = ..., memory_mib: _Optional[int] = ..., memory_limit_mib: _Optional[int] = ..., gpu_type: _Optional[str] = ..., gpu_count: _Optional[int] = ..., private_network: _Optional[bool] = ..., block_network: _Optional[bool] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("assignment", "rank")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class CheckPeers(_message.Message):
    __slots__ = ("assignment", "rank", "addresses")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("assignment", "rank", "signal", "grace_ms", "reason")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    signal: int
    grace_ms: int
    reason: str
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., signal: _Optional[int] = ..., grace_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("assignment", "rank")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class AckLogs(_message.Message):
    __slots__ = ("assignment", "rank", "offset")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    assignment: int
    rank: int
    offset: int
    def __init__(self, assignment: _Optional[int] = ..., rank: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class GetLayerRequest(_message.Message):
    __slots__ = ("layer_id",)
    LAYER_ID_FIELD_NUMBER: _ClassVar[int]
    layer_id: str
    def __init__(self, layer_id: _Optional[str] = ...) -> None: ...

class LayerFile(_message.Message):
    __slots__ = ("path", "mode", "data", "more")
    PATH_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    path: str
    mode: int
    data: bytes
    more: bool
    def __init__(self, path: _Optional[str] = ..., mode: _Optional[int] = ..., data: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...
