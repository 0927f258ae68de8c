"""The feature behind each RPC, for the sentence that refuses it and for docs/compatibility.md."""

from __future__ import annotations

_FEATURES = {
    "Sandbox": "Sandboxes are",
    "PersistentSandbox": "Sandboxes are",
    "Volume": "Volumes are",
    "SharedVolume": "Network file systems are",
    "Dict": "Dicts are",
    "Queue": "Queues are",
    "Secret": "Secrets with a name are",
    "Image": "Image building and publishing are",
    "Tunnel": "Tunnels are",
    "Flash": "Servers are",
    "Server": "Servers are",
    "ContainerServer": "Servers are",
    "ContainerExec": "Running commands in containers is",
    "ContainerFilesystem": "The container file system API is",
    "ContainerCheckpoint": "Memory snapshots are",
    "ContainerReloadVolumes": "Volumes are",
    "TaskGetCommandRouterAccess": "Running commands in containers is",
    "Attempt": "The input plane is",
    "Map": "The input plane is",
    "Proxy": "Proxies are",
    "Domain": "Custom domains are",
    "Endpoint": "Endpoints are",
    "Webhook": "Web endpoints are",
    "Audit": "Audit logs are",
    "Workspace": "Workspace administration is",
    "ServiceUser": "Service users are",
    "UserGroup": "User groups are",
    "Token": "Token administration is",
    "Template": "Templates are",
    "Environment": "Environment administration is",
    "App": "This part of app administration is",
    "Function": "This part of functions is",
    "Class": "This part of classes is",
    "Blob": "Large arguments and results are",
    "Mount": "Mounts are",
    "Curl": "`modal curl` is",
    "Metrics": "Metrics are",
    "Cluster": "This part of clusters is",
    "CliCommandSuggest": "Command suggestions are",
    "ObjectSuggest": "Name suggestions are",
    "Container": "This part of containers is",
    "Task": "This part of tasks is",
}


def feature_of(rpc: str) -> str:
    """What a person would call what this RPC is for, with its verb: "Volumes are"."""
    best = max((prefix for prefix in _FEATURES if rpc.startswith(prefix)), key=len, default="")
    return _FEATURES.get(best, f"{rpc} is")
