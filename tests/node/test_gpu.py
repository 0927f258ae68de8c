"""A machine with NVIDIA GPUs: one node with all of them, whose memory is free again when its container is gone. Skips elsewhere."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

import pytest

from phalanx.node.gpus import find_gpus
from phalanx.node.processes import descendants

from .test_container import on_crun
from .test_output import python

GPUS = find_gpus()
pytestmark = pytest.mark.skipif(not GPUS.count, reason="no NVIDIA GPU here")

# Takes 1 GiB on GPU 0 by the driver's own library, in this process and in a child that leaves the session, and waits.
HOLD = """
import ctypes, os, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(code, what):
    if code: raise SystemExit(f"{what}: CUDA error {code}")
if os.fork() == 0:
    os.setsid()
check(cuda.cuInit(0), "cuInit")
count = ctypes.c_int()
check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)), "cuMemAlloc")
print("holding", count.value)
time.sleep(1000)
"""


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def used_mib() -> int:
    """NVML's figure for GPU 0."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    device, memory = ctypes.c_void_p(), Memory()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
    nvml.nvmlShutdown()
    return memory.used >> 20


@on_crun
def test_the_memory_of_a_killed_container_is_free_again(agent, server):
    [node] = [node for node in server.registers[0].nodes if not node.shared_only]
    assert (node.gpu_type, node.gpu_count, node.simulated) == (GPUS.type, GPUS.count, False)
    before = used_mib()
    server.run(1, *python(HOLD), gpu_type=GPUS.type, gpu_count=GPUS.count, memory_limit_mib=8192)
    seen = server.wait(1, 0, lambda seen: seen.text().count(b"\n") >= 2 or bool(seen.exited))
    assert seen.text() == b"holding %d\n" % GPUS.count * 2
    assert used_mib() >= before + 2048
    server.stop(1, signal=9)
    assert server.finish(1).released[0].remains == ""
    assert used_mib() <= before + 64


@on_crun
def test_a_node_whose_gpu_memory_does_not_come_back_takes_no_work(agent, server):
    """Somebody outside takes the card while a container has it: for the agent, memory that stays."""
    server.run(1, "/bin/sleep", "1000", gpu_type=GPUS.type, gpu_count=GPUS.count)
    server.wait(1, 0, lambda seen: bool(seen.started))
    with subprocess.Popen([sys.executable, "-u", "-c", HOLD], stdout=subprocess.PIPE, start_new_session=True) as outsider:
        try:
            assert outsider.stdout is not None
            assert outsider.stdout.readline() + outsider.stdout.readline() == b"holding %d\n" % GPUS.count * 2
            server.stop(1, signal=9)
            assert server.finish(1).released[0].remains.startswith("GPU 0 with ")
        finally:
            for pid in (*descendants(outsider.pid), outsider.pid):
                os.kill(pid, signal.SIGKILL)
    refused = server.prepare(2, command=["/bin/true"]).prepared[-1].refusal
    assert refused.sentence.startswith("node node-0 takes no work: GPU 0 with ")


@on_crun
def test_a_container_without_gpus_sees_none(agent, server):
    server.run(1, "/bin/sh", "-c", "ls /dev | grep nvidia; echo none")
    assert server.finish(1).text() == b"none\n"
