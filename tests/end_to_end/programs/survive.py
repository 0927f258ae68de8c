"""Clusters that go on until the tester lets them end, by a file."""

import json
import os
import signal
import subprocess
import time

import modal

app = modal.App("survive")


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def write_lines():
    """Writes numbered lines without a gap until /tmp/finish is there."""
    rank = modal.Cluster.from_context().container_rank()
    number = 0
    while not os.path.exists("/tmp/finish"):
        print(f"rank {rank} line {number}")
        number += 1
        time.sleep(0.05)
    print(f"rank {rank} ends")
    return os.environ["MODAL_TASK_ID"], number


@app.function(gpu="H100:8")
@modal.clustered(size=4)
def one_leaves():
    """Rank 3 is done at /tmp/leave, the others at /tmp/finish."""
    rank = modal.Cluster.from_context().container_rank()
    print(f"rank {rank} is there")
    while not os.path.exists("/tmp/leave" if rank == 3 else "/tmp/finish"):
        time.sleep(0.05)
    return os.environ["MODAL_TASK_ID"]


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def leave_children():
    """Children in sessions of their own that ignore what they can, beside a main process."""
    rank = modal.Cluster.from_context().container_rank()
    code = r"""
import os, signal, time
for number in (1, 2, 15):
    signal.signal(number, signal.SIG_IGN)
os.write(1, b"a stubborn child\n")
time.sleep(3600)
"""
    for _ in range(3):
        subprocess.Popen(["python", "-c", code], start_new_session=True)
    print(f"rank {rank} has children")
    if rank == 0:
        while not os.path.exists("/tmp/die"):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


@app.function(gpu="H100:8", single_use_containers=True)
@modal.clustered(size=2)
def once(x):
    return modal.Cluster.from_context().object_id, x


@app.local_entrypoint()
def lines():
    print(f"\n## result {json.dumps(write_lines.remote())}", flush=True)


@app.local_entrypoint()
def four():
    print(f"\n## result {json.dumps(one_leaves.remote())}", flush=True)


@app.local_entrypoint()
def children(times: int = 1):
    for _ in range(times):
        try:
            leave_children.remote()
        except Exception as error:
            print("failed:", error, flush=True)


@app.local_entrypoint()
def one_after_the_other(times: int):
    print(f"\n## clusters {json.dumps([once.remote(i) for i in range(times)])}", flush=True)
