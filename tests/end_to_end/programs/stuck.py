"""A cluster whose rank 1 reads from a disk that does not answer, in its first attempt; and one that needs all three nodes."""

import json
import os
import time
from pathlib import Path

import modal

app = modal.App("stuck")
retries = modal.Retries(max_retries=1, initial_delay=1.0, backoff_coefficient=1.0)


@app.function(gpu="H100:8", retries=retries, experimental_options={"grace_period": 1})
@modal.clustered(size=2)
def load():
    rank, attempt = modal.Cluster.from_context().container_rank(), os.environ["PHALANX_ATTEMPT"]
    print(f"rank {rank} loads, attempt {attempt}", flush=True)
    if attempt == "2":
        return os.environ["PHALANX_LAST_END"]
    while not os.path.exists("/tmp/disk"):
        time.sleep(0.05)
    if rank == 1:
        Path("/tmp/disk/weights").read_bytes()
    raise OSError("this rank has no weights")


@app.function(gpu="H100:8")
@modal.clustered(size=3)
def wide():
    return "all three"


@app.local_entrypoint()
def main():
    print("## load", json.dumps(load.remote()), flush=True)
    print("## wide", json.dumps(wide.remote()), flush=True)
