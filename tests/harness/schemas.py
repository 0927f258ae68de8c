"""The tables and columns of earlier versions, as their own code made them."""

from __future__ import annotations

SCHEMAS: dict[str, dict[str, str]] = {
    "58137d7": {
        "app": (
            "app_id environment description name state tags function_ids class_ids created_ms created_by deployed_ms "
            "stopped_ms stopped_by stop_reason drained client_version"
        ),
        "app_version": (
            "app_id version type deployed_ms deployed_by client_version tag commit_info tags function_ids class_ids "
            "definition_ids functions source_version"
        ),
        "class": "class_id app_id name function_id created_ms",
        "environment": "name environment_id is_default webhook_suffix created_ms",
        "image": "image_id definition builder_version python_version refusal created_ms",
        "mount": "mount_id name checksum files folder created_ms",
        "function": (
            "function_id app_id name definition_id definition data bound_to serialized_params size clustered rdma "
            "fabric_size gpus ranked cpu_milli cpu_limit_milli memory_mib memory_limit_mib timeout_s startup_timeout_s "
            "max_inputs min_nodes max_nodes buffer_nodes scaledown_s retries retry_initial_ms retry_backoff retry_max_ms "
            "is_generator private_network block_network image_id mount_ids options region client_version published "
            "created_ms bind_options is_class methods single_use batch_max_size disk_mib zone instance_types cloud "
            "environment autoscaler_override"
        ),
        "call": (
            "call_id function_id app_id kind invocation parent_input_id return_exceptions state inputs_finished num_inputs "
            "num_outputs created_ms"
        ),
        "input": (
            "input_id call_id function_id idx payload state attempt user_failures infra_failures assignment created_ms "
            "started_ms not_before_ms last_end"
        ),
        "output": "input_id call_id idx seq result data_format task_id started_s created_s",
        "chunk": "call_id index payload",
        "assignment": (
            "assignment cluster_id app_id function_id size clustered phase gpu_type gpu_choice max_inputs timeout_ms "
            "startup_timeout_ms verdict failures stopping stopped_ms draining idle_since_ms created_ms running_ms ended_ms"
        ),
        "member": (
            "assignment rank task_id node_id cluster_id app_id function_id task_secret state ipv6 ipv4 http_address "
            "exit_code exit_signal oom_killed sentence reached asked node_lost created_ms started_ms ended_ms"
        ),
        "attempt": "input_id attempt assignment position fetched results cancelling decided",
        "node_record": (
            "node_id agent_id engine hostname gpu_type gpu_count cpu_milli memory_mib simulated rdma region zone network "
            "block rack fabric_id runtime runtime_reason guarantees python_versions boot_id unschedulable cordoned removed "
            "last_seen_ms"
        ),
        "kept_answer": "caller rpc idempotency_key answer created_ms",
        "counter": "name value",
        "log_piece": (
            "seq app_id function_id cluster_id task_id assignment rank segment start end first_ns last_ns spool_end "
            "last_seq lines lost_before ended"
        ),
    },
}
"""By commit: table -> its columns."""
