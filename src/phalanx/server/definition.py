"""Reads what a client sends as a function (api_pb2.Function or FunctionData) into the record that the deciding rooms use.

Fields are read by name where clients differ: 1.6.4's messages and 0.73's are not the same, and unknown fields pass through.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from modal_proto import api_pb2

from phalanx.model.work import Function

DEFAULT_TIMEOUT_S = 300
DEFAULT_CPU_MILLI = 125
DEFAULT_MEMORY_MIB = 128
DEFAULT_SCALEDOWN_S = 60
ONE_INPUT = 1
_SAME_IN_OPTIONS = (
    "timeout_secs", "target_concurrent_inputs", "max_concurrent_inputs", "batch_max_size", "batch_linger_ms", "cloud_provider_str",
)  # fmt: skip


@dataclass
class Asked:
    """A function as its client sent it: one definition, or one for each GPU preference, all else being equal."""

    ranked: list[api_pb2.Function]
    data: bytes = b""           # the FunctionData, if it came as one

    @property
    def definition(self) -> api_pb2.Function:
        return self.ranked[0]


def read_asked(function: bytes, function_data: bytes) -> Asked:
    """Exactly one of the two is not empty. Each preference becomes a whole definition: its own, under the common fields."""
    if not function_data:
        return Asked([api_pb2.Function.FromString(function)])
    data = api_pb2.FunctionData.FromString(function_data)
    ranked = []
    for entry in sorted(data.ranked_functions, key=lambda one: one.rank):
        merged = api_pb2.Function()
        merged.CopyFrom(entry.function)
        copy_common_fields(data, merged, skip=("ranked_functions",))
        ranked.append(merged)
    return Asked(ranked, function_data)


def copy_common_fields(source: Message, target: Message, skip: tuple[str, ...] = ()) -> None:
    """Every field set in `source` that `target` has too, under the same name and of the same type."""
    fields = target.DESCRIPTOR.fields_by_name
    for field, value in source.ListFields():
        twin = fields.get(field.name)
        if twin is None or field.name in skip or twin.type != field.type or twin.message_type is not field.message_type:
            continue
        if field.is_repeated:
            target.ClearField(field.name)
            getattr(target, field.name).MergeFrom(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def data_of(ranked: list[api_pb2.Function]) -> api_pb2.FunctionData:
    """The FunctionData for an answer. The packaged code stays out: whoever asks has it already, and it may be 16 MiB."""
    data = api_pb2.FunctionData()
    copy_common_fields(ranked[0], data)
    for rank, function in enumerate(ranked):
        entry = data.ranked_functions.add(rank=rank)
        entry.function.CopyFrom(without_code(function))
    return data


def without_code(function: api_pb2.Function) -> api_pb2.Function:
    slim = api_pb2.Function()
    slim.CopyFrom(function)
    slim.ClearField("function_serialized")
    slim.ClearField("class_serialized")
    return slim


def ranked_of(function: Function) -> list[api_pb2.Function]:
    """The definitions of a record, one for each GPU preference; one when there is no list."""
    return [api_pb2.Function.FromString(one) for one in function.ranked or [function.definition]]


def fill(record: Function, asked: Asked) -> None:
    """Read everything the deciding rooms need into the record. GPUs are read by core/gpu.py and set by the caller."""
    definition = asked.definition
    record.name = definition.function_name
    record.definition = serialized(definition)
    record.ranked = [serialized(one) for one in asked.ranked] if len(asked.ranked) > 1 else []
    record.data = asked.data
    record.image_id = definition.image_id
    record.mount_ids = list(definition.mount_ids)
    record.secret_ids = list(definition.secret_ids)
    record.options = dict(_get(definition, "experimental_options", {}))
    record.is_class = definition.is_class
    record.methods = sorted(definition.method_definitions)
    record.is_generator = definition.function_type == api_pb2.Function.FUNCTION_TYPE_GENERATOR
    record.batch_max_size = definition.batch_max_size
    record.single_use = bool(_get(definition, "single_use_containers", False)) or definition.max_inputs == ONE_INPUT
    record.max_inputs = (definition.max_concurrent_inputs or ONE_INPUT) * max(definition.batch_max_size, 1)
    record.block_network = definition.block_network
    _read_cluster(record, definition)
    _read_resources(record, definition)
    _read_times_and_retries(record, definition)
    _read_scaling(record, definition)
    _read_placement(record, definition)


def asked_gpus(asked: Asked) -> list[tuple[str, int]]:
    """(type, count) of each preference that names a GPU, as the client sent it."""
    configs = [function.resources.gpu_config for function in asked.ranked]
    return [(config.gpu_type, config.count) for config in configs if config.gpu_type]


def definition_id(function_id: str, asked: Asked, bound: bytes = b"") -> str:
    """Derived from the content: the same function sent again gets the same id. The client sends mount ids in any order."""
    digest = hashlib.sha256(function_id.encode() + b"\0" + bound)
    for function in asked.ranked:
        ordered = api_pb2.Function()
        ordered.CopyFrom(function)
        ordered.ClearField("mount_ids")
        ordered.mount_ids.extend(sorted(function.mount_ids))
        digest.update(serialized(ordered))
    return f"de-{digest.hexdigest()[:22]}"


def apply_options(asked: Asked, options: api_pb2.FunctionOptions) -> Asked:
    """The definitions under what `Cls.with_options` and its like set. A GPU there takes the place of the whole list."""
    ranked = asked.ranked[:1] if options.resources.gpu_config.gpu_type else asked.ranked
    changed = []
    for function in ranked:
        one = api_pb2.Function()
        one.CopyFrom(function)
        _apply(one, options)
        changed.append(one)
    return Asked(changed, asked.data)


def serialized(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _apply(function: api_pb2.Function, options: api_pb2.FunctionOptions) -> None:
    if options.HasField("resources"):
        function.resources.MergeFrom(options.resources)
    if options.HasField("retry_policy"):
        function.retry_policy.CopyFrom(options.retry_policy)
    for name in _SAME_IN_OPTIONS:
        if _has(options, name):
            setattr(function, name, getattr(options, name))
    settings = function.autoscaler_settings
    for name, setting, old in (
        ("warm_pool_size", "min_containers", "warm_pool_size"),
        ("concurrency_limit", "max_containers", "concurrency_limit"),
        ("buffer_containers", "buffer_containers", "_experimental_buffer_containers"),
        ("task_idle_timeout_secs", "scaledown_window", "task_idle_timeout_secs"),
    ):
        if _has(options, name):
            setattr(settings, setting, getattr(options, name))
            setattr(function, old, getattr(options, name))
    if _has(options, "scheduler_placement"):
        function.scheduler_placement.CopyFrom(options.scheduler_placement)
    function.mount_ids.extend(m for m in options.mount_ids if m not in function.mount_ids)
    if options.replace_secret_ids:
        function.ClearField("secret_ids")
    function.secret_ids.extend(s for s in options.secret_ids if s not in function.secret_ids)


def _read_cluster(record: Function, definition: Any) -> None:
    record.clustered = definition._experimental_group_size > 0
    record.size = definition._experimental_group_size or 1
    record.fabric_size = _get(definition, "_experimental_fabric_size", 0)
    record.rdma = definition.resources.rdma
    record.private_network = definition.i6pn_enabled or record.clustered


def _read_resources(record: Function, definition: Any) -> None:
    resources = definition.resources
    record.cpu_milli = resources.milli_cpu or DEFAULT_CPU_MILLI
    record.cpu_limit_milli = resources.milli_cpu_max
    record.memory_mib = resources.memory_mb or DEFAULT_MEMORY_MIB
    record.memory_limit_mib = resources.memory_mb_max
    record.disk_mib = resources.ephemeral_disk_mb


def _read_times_and_retries(record: Function, definition: Any) -> None:
    record.timeout_s = definition.timeout_secs or DEFAULT_TIMEOUT_S
    record.startup_timeout_s = _get(definition, "startup_timeout_secs", 0)
    policy = definition.retry_policy
    record.retries = policy.retries
    record.retry_initial_ms = policy.initial_delay_ms or (0 if policy.retries else 1000)
    record.retry_backoff = policy.backoff_coefficient or 1.0
    record.retry_max_ms = policy.max_delay_ms or 60_000


def _read_scaling(record: Function, definition: Any) -> None:
    """Newer clients say it in autoscaler_settings, and in the older fields too."""
    settings = definition.autoscaler_settings
    record.min_nodes = settings.min_containers or definition.warm_pool_size
    record.max_nodes = settings.max_containers or definition.concurrency_limit
    record.buffer_nodes = settings.buffer_containers or definition._experimental_buffer_containers
    record.scaledown_s = settings.scaledown_window or definition.task_idle_timeout_secs or DEFAULT_SCALEDOWN_S


def _read_placement(record: Function, definition: Any) -> None:
    placement = definition.scheduler_placement
    record.region = list(placement.regions)
    record.zone = _get(placement, "_zone", "")
    record.instance_types = list(_get(placement, "_instance_types", []))
    record.cloud = "" if definition.cloud_provider_str == "auto" else definition.cloud_provider_str


def _get(message: Any, name: str, default: Any) -> Any:
    return getattr(message, name) if name in message.DESCRIPTOR.fields_by_name else default


def _has(message: Any, name: str) -> bool:
    return name in message.DESCRIPTOR.fields_by_name and message.HasField(name)
