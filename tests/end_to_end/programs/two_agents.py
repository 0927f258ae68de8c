"""A cluster whose ranks say in a folder of the machine that they run, until somebody writes `finish` there."""

import json
import os
import time
from pathlib import Path

import modal

app = modal.App("two-agents")


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def work(folder: str) -> str:
    attempt, rank = os.environ["PHALANX_ATTEMPT"], modal.Cluster.from_context().container_rank()
    Path(folder, f"{attempt}-{rank}").write_text(str(os.getpid()))
    while not Path(folder, "finish").exists():
        time.sleep(0.1)
    return attempt


@app.local_entrypoint()
def main(folder: str):
    print("## attempt", json.dumps(work.remote(folder)))
