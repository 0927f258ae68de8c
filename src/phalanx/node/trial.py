"""Try a runtime by doing: one container from the default image, from prepare to release. Forked from the launcher, stdlib only."""

from __future__ import annotations

import os
import shutil
from typing import Any

from . import namespaces, runtime
from .runtime import RuntimeFault
from .shim import hide_second_hierarchy
from .spec import Limits, Mount, Spec


def run(trial: dict[str, Any]) -> None:
    """Raises RuntimeFault or OSError with the reason when it does not work. Leaves nothing."""
    folder = f"{trial.pop('folder')}.{os.getpid()}"
    mounts = [Mount(**mount) for mount in trial.pop("mounts")]
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "api"))
    spec = Spec(
        assignment=0, rank=0, task_id="", task_secret="", folder=folder, tasks_socket="", api_folder=os.path.join(folder, "api"),
        command=["/usr/bin/env", "true"], environment={"PATH": "/usr/bin:/bin"}, hostname="trial", mounts=mounts,
        limits=Limits(memory_bytes=64 << 20, cpu_quota_us=100_000, pids=100, shm_bytes=1 << 20), cgroup=f"phalanx-trial-{os.getpid()}",
        **trial)
    try:
        namespaces.become_subreaper()
        namespaces.private_mounts()
        hide_second_hierarchy(spec)
        tried = runtime.make(spec)
        tried.prepare()
        try:
            read, write = os.pipe()
            main = tried.start(write, write)
            os.close(write)
            status = os.waitstatus_to_exitcode(os.waitpid(main, 0)[1])
            if status != 0:
                said = os.read(read, 2000).decode(errors="replace").strip()
                raise RuntimeFault(f"a container that runs `true` ended with {status}: {said}")
        finally:
            remains = tried.release()
        if remains:
            raise RuntimeFault(f"a container could not be removed: {remains} remains")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
