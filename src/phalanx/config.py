"""The configuration of one control plane: a file in its state folder, written by `phalanx up`, read by every process."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

_QUOTA = {"nodes": int, "gpus": dict, "cohort": str, "borrow": int}
_KINDS = {str: "a text", int: "a whole number", bool: "true or false", dict: "an object"}


@dataclass
class Config:
    """All settings, with the values they have when nobody sets them. Times in milliseconds unless named otherwise."""

    workspace: str = "local"
    listen: str = "127.0.0.1:8900"          # the public address that clients use
    token_id: str = ""
    token_secret: str = ""
    join_secret: str = ""                   # agents say it when they register
    workspace_prefix: str = ""              # the workspace's /48 inside fdaa::/16
    nodes: int = 2                          # the local fleet: virtual nodes on this machine
    gpus: int = 8                           # simulated GPUs a node; 0 for a fleet without
    gpu: str = "any"                        # the type they say they are
    runtime: str = "auto"                   # auto, crun, runc, runsc, process
    allow_cpu_clusters: bool = False
    database: str = ""                      # a URL; empty: SQLite in the state folder
    durability: str = "full"                # full: fsync before an answer; process: survives kill -9 only
    finish_window_ms: int = 10_000          # design rule 5
    grace_ms: int = 30_000                  # between the interrupt and SIGKILL; a function may have its own
    lease_ms: int = 30_000                  # a node that is cut off from all others stops its ranks after this (design rule 3)
    outage_limit_ms: int = 15 * 60_000      # a gang whose nodes reach each other goes on without the control plane for this long
    peer_listen: str = "127.0.0.1:0"        # where an agent hears the other agents' heartbeats: the address they reach it at; 0: any port
    retention_ms: int = 120_000             # a gang that lost a node keeps the healthy ones this long for its retry
    turn_ms: int = 60_000                   # so long a cluster goes on with inputs before it gives way to one that waited longer
    queue_deadline_s: int = 0               # a call that waits longer for nodes fails with the reason; 0: never
    quotas: dict[str, dict[str, object]] = field(default_factory=dict)     # group -> {"nodes": 8, "gpus": {"H100": 32}}
    infra_retries: int = 16                 # restarts of one input that were not the program's fault
    prepare_timeout_ms: int = 600_000       # for pull and prepare on every node, from placement; 0: no limit
    hello_timeout_ms: int = 300_000         # from the start of a cluster's containers until all are up; 0: no limit
    max_timeout_s: int = 86_400             # the longest timeout a function may ask for; 0: no limit
    result_retention_s: int = 7 * 86_400    # decided calls with their results, and what belongs to them, are kept this long
    extra: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Config:
        """Read the file. ValueError says what is wrong with it: no JSON, a name that is not known, a value of another kind."""
        try:
            values = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
        if not isinstance(values, dict):
            raise ValueError(f"{path}: an object with settings is wanted, it holds {values!r}")
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise ValueError(f"{path}: unknown setting {', '.join(unknown)}; known: {', '.join(cls.__dataclass_fields__)}")
        for name, value in values.items():
            wanted = type(getattr(cls(), name))
            if type(value) is not wanted:
                raise ValueError(f"{path}: {name} is {value!r}, and {_KINDS[wanted]} is wanted")
            if wanted is int and value < 0:
                raise ValueError(f"{path}: {name} is {value}, and a number from 0 is wanted")
        if (lease := values.get("lease_ms", cls.lease_ms)) < 1000:
            raise ValueError(f"{path}: lease_ms is {lease}, and at least 1000 is wanted: nodes would stop for one late message")
        if 0 < (outage := values.get("outage_limit_ms", cls.outage_limit_ms)) < lease:
            raise ValueError(f"{path}: outage_limit_ms is {outage}, and at least lease_ms, {lease}, is wanted, or 0 for no limit")
        for queue, quota in values.get("quotas", {}).items():
            if fault := _fault_of_quota(quota):
                raise ValueError(f"{path}: quotas: '{queue}' {fault}")
        return cls(**values)

    def save(self, path: Path) -> None:
        """Write the file whole or not at all, readable by its owner only: it holds the tokens."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(draft, path)

    @property
    def database_url(self) -> str:
        """`database`, or where earlier versions had it; "" is SQLite in the state folder."""
        return self.database or self.extra.get("database", "")

    def with_secrets(self) -> Config:
        """Fill in the tokens and the address prefix where they are missing."""
        self.token_id = self.token_id or "ak-" + secrets.token_hex(11)
        self.token_secret = self.token_secret or "as-" + secrets.token_hex(16)
        self.join_secret = self.join_secret or secrets.token_hex(16)
        if not self.workspace_prefix:
            random32 = secrets.token_hex(4)
            self.workspace_prefix = f"fdaa:{random32[:4]}:{random32[4:]}"
        return self


def _fault_of_quota(quota: object) -> str:
    """What is wrong with one queue's quota, or ""."""
    if not isinstance(quota, dict):
        return f'is {quota!r}, and an object is wanted, such as {{"nodes": 8, "gpus": {{"H100": 32}}}}'
    if unknown := sorted(set(quota) - set(_QUOTA)):
        return f"has {', '.join(unknown)}, and only {', '.join(_QUOTA)} are known"
    for name, value in quota.items():
        if type(value) is not _QUOTA[name]:
            return f"has {name} {value!r}, and {_KINDS[_QUOTA[name]]} is wanted"
    counts = quota.get("gpus", {}) | {name: value for name, value in quota.items() if type(value) is int}
    for name, count in counts.items():
        if type(count) is not int or count < 0:
            return f"has {name} {count!r}, and a whole number from 0 is wanted"
    if "cohort" in quota and "nodes" not in quota:
        return "is in a cohort, and needs nodes of its own to lend"
    if "borrow" in quota and "cohort" not in quota:
        return "borrows, and names no cohort to borrow from"
    return ""
