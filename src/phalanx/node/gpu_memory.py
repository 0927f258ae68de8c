"""Is a container's GPU memory free again? Asked of the driver's own library (NVML) before and after it. Runs in the shim, stdlib only.

The driver takes memory back when the last descriptor of a process closes, which can be a moment after the process has left its cgroup.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from .gpus import driver_library
from .spec import Spec, write_whole

_PATIENCE_SECONDS = 10.0
_SLACK_BYTES = 64 << 20      # what the driver keeps for itself moves a little
_FILE = "gpu-memory.json"

Use = dict[int, tuple[int, int]]      # card's minor → bytes in use, processes that compute on it


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def note(spec: Spec) -> None:
    """Write down what is in use on the container's cards before it begins."""
    if spec.cards:
        write_whole(os.path.join(spec.folder, _FILE), json.dumps(in_use(spec.cards)))


def remains(spec: Spec) -> str:
    """Wait until its cards are as they were; what is still in use after ten seconds, or nothing. Its processes must be gone."""
    if not spec.cards:
        return ""
    try:
        with open(os.path.join(spec.folder, _FILE)) as file:
            before: Use = {int(minor): (used, processes) for minor, (used, processes) in json.load(file).items()}
    except (OSError, ValueError):
        return ""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while over := _over(before, in_use(list(before))):
        if time.monotonic() > deadline:
            return over
        time.sleep(0.05)
    return ""


def in_use(minors: list[int]) -> Use:
    """Empty where the library is missing or fails: then nobody can tell."""
    found: Use = {}
    with contextlib.suppress(OSError, AttributeError), _library() as nvml:
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            device, minor, memory, processes = ctypes.c_void_p(), ctypes.c_uint(), _Memory(), ctypes.c_uint(0)
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
                continue
            nvml.nvmlDeviceGetMinorNumber(device, ctypes.byref(minor))
            if minor.value not in minors or nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
                continue
            # Without room for their names it answers "too small", and how many there are.
            nvml.nvmlDeviceGetComputeRunningProcesses(device, ctypes.byref(processes), None)
            found[minor.value] = (memory.used, processes.value)
    return found


@contextlib.contextmanager
def _library() -> Iterator[Any]:
    nvml = driver_library("libnvidia-ml.so.1")
    if nvml.nvmlInit_v2() != 0:
        raise OSError("the driver's library does not start")
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _over(before: Use, now: Use) -> str:
    """What is in use beyond what was before, as a sentence for people."""
    found = []
    for minor, (used, processes) in now.items():
        used_before, processes_before = before[minor]
        if processes > processes_before or used > used_before + _SLACK_BYTES:
            found.append(f"GPU {minor} with {used >> 20} MiB of memory and {processes} processes, before it {used_before >> 20} MiB "
                         f"and {processes_before}")
    return "; ".join(found)
