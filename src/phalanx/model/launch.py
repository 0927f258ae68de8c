"""What one container needs to start, as far as its function decides it. The server makes it, the agent's Prepare carries it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ContainerSpec:
    """The function's part of a Prepare message (protocol/agent.proto), field by field."""

    container_arguments: bytes                                # a serialized api_pb2.ContainerArguments
    layer_ids: list[str] = field(default_factory=list)        # lowest first
    environment: dict[str, str] = field(default_factory=dict)
    python_version: str = ""                                  # minor: "3.11"; "" takes the node's
    function_name: str = ""
    cpu_milli: int = 0
    cpu_limit_milli: int = 0                                  # 0: the soft limit, request + 16 cores
    memory_mib: int = 0
    memory_limit_mib: int = 0                                 # 0: the node's
    gpu_type: str = ""
    gpu_count: int = 0
    private_network: bool = False
    block_network: bool = False
