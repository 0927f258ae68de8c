"""What a program sees of real GPUs, alone and as a cluster of one node; and what the next one sees when it was killed."""

import json
import os
import signal
import subprocess
import time

import modal

KIND, COUNT = os.environ.get("GPU_KIND", "H200"), int(os.environ.get("GPU_COUNT", "1"))
QUERY = "index,uuid,name,driver_version,memory.total,memory.used"
app = modal.App("gpu-machine")


def say(name, value):
    print("##", name, json.dumps(value))


def smi(*query):
    out = subprocess.run(["nvidia-smi", *query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True).stdout
    return [[cell.strip() for cell in line.split(",")] for line in out.splitlines() if line.strip()]


def cards():
    return [dict(zip(QUERY.split(","), row, strict=True)) for row in smi(f"--query-gpu={QUERY}")]


def facts():
    began = time.monotonic()
    import torch

    imported = time.monotonic()
    a = torch.arange(512 * 512, dtype=torch.float32).reshape(512, 512) / (512 * 512)
    right = bool(torch.allclose((a.cuda() @ a.cuda()).cpu(), a @ a, rtol=1e-3))
    across = bool((torch.arange(1 << 20, device="cuda:0").to(f"cuda:{torch.cuda.device_count() - 1}").cpu() == torch.arange(1 << 20)).all())
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        x @ x
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(10):
        x @ x
    end.record()
    torch.cuda.synchronize()
    return {
        "torch": torch.__version__, "available": torch.cuda.is_available(), "devices": torch.cuda.device_count(), "across": across,
        "name": torch.cuda.get_device_name(0), "right": right, "tflops": round(10 * 2 * 8192**3 / start.elapsed_time(end) / 1e9),
        "import_s": round(imported - began, 1), "nodes": sorted(n for n in os.listdir("/dev") if n.startswith("nvidia")),
        "caps": os.listdir("/dev/nvidia-caps") if os.path.exists("/dev/nvidia-caps") else [], "cards": cards(),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH"),
        "loaded": sorted({line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so" in line}),
    }


@app.function(gpu=KIND, timeout=600)
def alone():
    return facts()


@app.function(gpu=KIND, timeout=600)
def my_cards(seconds):
    print("holding", flush=True)
    time.sleep(seconds)
    return cards()


@app.function(timeout=600)
def without():
    import torch

    return [torch.cuda.is_available(), sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))]


@app.function(gpu=f"{KIND}:{COUNT}", timeout=600)
@modal.clustered(size=1)
def whole():
    cluster = modal.Cluster.from_context()
    return {"rank": cluster.container_rank(), "ips": cluster.container_ips()} | facts()


@app.function(gpu=f"{KIND}:{COUNT}", timeout=600)
@modal.clustered(size=1)
def in_use():
    """The first thing that it does."""
    return {"cards": cards(), "processes": smi("--query-compute-apps=pid,used_memory")}


def take(mib):
    """By the driver's own library, on card 0."""
    import ctypes

    cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20)) == 0


@app.function(gpu=f"{KIND}:{COUNT}", timeout=600)
@modal.clustered(size=1)
def hold_and_die():
    """A child in a session of its own takes 20 GiB, we 1 GiB; then SIGKILL for us alone."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        take(20 << 10)
        os.write(write, b"!")
        time.sleep(1000)
    take(1 << 10)
    os.read(read, 1)
    print("before the kill:", json.dumps(in_use.local()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@app.local_entrypoint()
def see():
    say("alone", alone.remote())
    say("whole", whole.remote())


@app.local_entrypoint()
def after_a_kill():
    say("before", in_use.remote())
    dying = hold_and_die.spawn()
    after = in_use.spawn()          # waits for the node: its first look is the first moment that the node is free again
    try:
        dying.get()
    except Exception as error:
        say("error", f"{type(error).__name__}: {error}")
    say("after", after.get())


@app.local_entrypoint()
def side_by_side():
    calls = [my_cards.spawn(5) for _ in range(COUNT)]
    say("cards", [call.get() for call in calls])


@app.local_entrypoint()
def hold_one(seconds: int):
    say("cards", my_cards.remote(seconds))


@app.local_entrypoint()
def none():
    say("without", without.remote())
