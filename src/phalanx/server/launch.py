"""From a function to a container: everything an agent's Prepare needs that the function decides."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from modal_proto import api_pb2

from phalanx.model.app import App, Image, Mount
from phalanx.model.cluster import Assignment, Member
from phalanx.model.launch import ContainerSpec
from phalanx.model.node import NodeRecord
from phalanx.model.work import Function
from phalanx.server.clients import OWN_PYTHON
from phalanx.server.definition import ranked_of

if TYPE_CHECKING:
    from phalanx.server.server import Server

_CLIENT_MOUNT = "modal-client-mount-"


def container_spec(server: Server, function: Function, member: Member, gpu_choice: int) -> ContainerSpec:
    """What the container of one rank needs. `gpu_choice` is the place of the chosen preference in Function.gpus.

    Left to the agent, because it knows where things lie: MODAL_SERVER_URL, MODAL_CONTAINER_ARGUMENTS_PATH, PYTHONPATH.
    """
    definition = ranked_of(function)[gpu_choice if function.ranked else 0]
    image = server.world[Image].get(function.image_id)
    python_version = (image.python_version if image else "") or OWN_PYTHON
    assignment = server.world[Assignment].get(member.assignment)
    chosen = function.gpus[gpu_choice] if function.gpus else ["", 0, False]
    return ContainerSpec(
        container_arguments=server.arguments.of(function, member, definition, gpu_choice),
        layer_ids=_layers(server, function, python_version),
        environment=_environment(server, function, member, definition),
        python_version=python_version,
        function_name=function.name,
        cpu_milli=function.cpu_milli,
        cpu_limit_milli=function.cpu_limit_milli,
        memory_mib=function.memory_mib,
        memory_limit_mib=function.memory_limit_mib,
        gpu_type=(assignment.gpu_type if assignment else "") or str(chosen[0]),
        gpu_count=int(str(chosen[1])),
        private_network=function.private_network,
        block_network=function.block_network,
    )


def _layers(server: Server, function: Function, python_version: str) -> list[str]:
    """The client's layers first, whatever place its mount has in the list: the client sends a set, in any order."""
    mounts = server.world[Mount]
    own = [mount_id for mount_id in function.mount_ids if not mounts[mount_id].name.startswith(_CLIENT_MOUNT)]
    return [*server.mounts.client_layers(function.client_version, python_version), *own]


def _environment(server: Server, function: Function, member: Member, definition: api_pb2.Function) -> dict[str, str]:
    node = server.world[NodeRecord].get(member.node_id)
    environment = {
        "MODAL_IS_REMOTE": "1",
        "MODAL_TASK_ID": member.task_id,
        "MODAL_ENVIRONMENT": server.world[App][function.app_id].environment,
        "MODAL_IMAGE_ID": function.image_id,
        "MODAL_REGION": (node.region if node else "") or "local",
        "MODAL_CLOUD_PROVIDER": "local",
        "MODAL_DISABLE_API_PROXY": "1",     # or a proxy of the machine would be used for the API's channel
        "PYTHONUNBUFFERED": "1",
    }
    assignment = server.world[Assignment].get(member.assignment)
    if assignment is not None:
        environment["PHALANX_ATTEMPT"] = str(assignment.attempt)
        if assignment.last_end:
            environment["PHALANX_LAST_END"] = assignment.last_end
    return _thread_counts(function, definition) | server.secrets.environment(function.secret_ids) | environment


def _thread_counts(function: Function, definition: api_pb2.Function) -> dict[str, str]:
    if "skip_num_threads_env_vars" in definition.resources.DESCRIPTOR.fields_by_name and definition.resources.skip_num_threads_env_vars:
        return {}
    threads = _threads(function, definition)
    return {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} if threads else {}


def _threads(function: Function, definition: api_pb2.Function) -> int:
    """From the CPU request (reference: platform-behaviour.md 3.3). 0: say nothing, for a cluster that asks no CPUs has the whole node."""
    if function.clustered and not definition.resources.milli_cpu:
        return 0
    return max(1, math.ceil(function.cpu_milli / 1000))
