"""What this machine has: cores, memory, GPUs, boot id."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

from phalanx.engines.local import Machine

from .gpus import find_gpus

# Containers get what is left when the machine's own processes have their part.
_OWN_MEMORY_MIB = 512


def look() -> Machine:
    """Read the facts now. GPUs that are there but can't be read count as none, never as simulated ones of their type."""
    gpus = find_gpus()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return Machine(
        hostname=re.sub(r"[^a-z0-9-]", "-", platform.node().lower())[:40] or "local",
        cpu_milli=1000 * len(os.sched_getaffinity(0)),
        memory_mib=max(256, memory - _OWN_MEMORY_MIB),
        gpu_type=gpus.type,
        gpu_count=gpus.count,
        rdma=bool(list(Path("/dev/infiniband").glob("uverbs*"))) if gpus.count else False,
    )


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
