"""What a runner finds of CUDA before it asks for it, what it can do then, and NCCL between the cards of one node."""

import json
import os
import subprocess
import sys

import modal

KIND, COUNT = os.environ.get("GPU_KIND", "H200"), int(os.environ.get("GPU_COUNT", "1"))
app = modal.App("gpu-forked")

# A program of its own, as torchrun starts it. A shared machine's switches may not be used for multicast, so NCCL is told not to.
RANK = """
import json, os, time, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
x = torch.full((1 << 28,), float(rank + 1), device="cuda")
dist.all_reduce(x)
right = bool((x == sum(range(1, dist.get_world_size() + 1))).all())
x.zero_()
for _ in range(3):
    dist.all_reduce(x)
torch.cuda.synchronize()
began = time.perf_counter()
for _ in range(10):
    dist.all_reduce(x)
torch.cuda.synchronize()
gb_s = 10 * x.nbytes / (time.perf_counter() - began) / 1e9
dist.barrier()
dist.destroy_process_group()
print("@@", json.dumps([rank, right, round(gb_s), ".".join(map(str, torch.cuda.nccl.version()))]), flush=True)
"""
# A tensor on the card, handed to another process by the driver's own way.
HANDED = """
import torch, torch.multiprocessing as mp
def add(tensors, sums):
    sums.put(float(tensors.get().sum()))
if __name__ == "__main__":
    ways = mp.get_context("spawn")
    tensors, sums = ways.Queue(), ways.Queue()
    other = ways.Process(target=add, args=(tensors, sums))
    other.start()
    tensor = torch.ones(1000, device="cuda")
    tensors.put(tensor)
    print("@@", sums.get(timeout=60), flush=True)
    other.join()
"""


def say(name, value):
    print("##", name, json.dumps(value))


def process():
    with open("/proc/self/maps") as maps:
        lines = maps.read().splitlines()
    with open("/proc/self/stat") as stat:
        arguments = int(stat.read().rpartition(")")[2].split()[48 - 3])
    [stack] = [line.split()[0].split("-") for line in lines if line.endswith("[stack]")]
    libraries = {line.split()[-1] for line in lines if "cuda" in line or "nvidia" in line}
    with open("/proc/self/status") as status:
        [seccomp] = [int(line.split()[1]) for line in status if line.startswith("Seccomp:")]
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    held = [os.readlink(link) for link in links if os.path.lexists(link)]
    forked = not int(stack[0], 16) <= arguments < int(stack[1], 16)      # an exec puts the command line on the stack
    return {"forked": forked, "libraries": sorted(libraries), "torch": "torch" in sys.modules, "seccomp": seccomp,
            "held": sorted(path for path in held if path.startswith("/dev/nvidia"))}


def run(name, text, *command):
    path = f"/tmp/{name}.py"
    with open(path, "w") as file:
        file.write(text)
    environment = os.environ | {"NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "INFO"}
    done = subprocess.run([sys.executable, *command, path], env=environment, capture_output=True, text=True, timeout=120)
    found = [json.loads(line.partition("@@ ")[2]) for line in done.stdout.splitlines() if "@@ " in line]
    words = ("Channel 00", "NCCL version", "WARN", "NET/", "via P2P", "via SHM")
    return {"code": done.returncode, "found": sorted(found) if found and isinstance(found[0], list) else found,
            "told": [line for line in done.stdout.splitlines() if any(word in line for word in words)][:12], "error": done.stderr[-2000:]}


@app.function(gpu=KIND, timeout=600)
def compute():
    before = process()
    import torch

    x = torch.ones(1024, 1024, device="cuda")
    pinned = torch.ones(1 << 20).pin_memory().to("cuda", non_blocking=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        (x @ x).sum().item()
    return before | {"sum": float((x @ x).sum()), "pinned": float(pinned.sum()), "kernels": len(profile.events()),
                     "after": process()["held"], "handed": run("handed", HANDED)}


@app.function(timeout=600)
def without():
    return process()


@app.function(gpu=f"{KIND}:{COUNT}", timeout=600)
@modal.clustered(size=1)
def all_reduce(cards):
    address = modal.Cluster.from_context().container_ips()[0]
    return process() | run("rank", RANK, "-m", "torch.distributed.run", "--nproc-per-node", str(cards), "--master-addr", address,
                           "--master-port", "29511")


@app.local_entrypoint()
def cuda():
    say("seen", compute.remote())


@app.local_entrypoint()
def plain():
    say("seen", without.remote())


@app.local_entrypoint()
def nccl():
    say("seen", all_reduce.remote(COUNT))
