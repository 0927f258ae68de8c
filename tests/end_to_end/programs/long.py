"""A cluster that works until it is interrupted, and a plain function that a detached app leaves behind."""

import json
import time

import modal
import modal.experimental

clustered = getattr(modal, "clustered", None) or modal.experimental.clustered
app = modal.App("long")


@app.function(gpu="H100:8")
@clustered(size=2)
def train_long():
    rank = modal.experimental.get_cluster_info().rank
    print(f"rank {rank} trains")
    try:
        time.sleep(3600)
    finally:
        print(f"rank {rank} was interrupted")


@app.function()
def later(x):
    print(f"later got {x}")
    time.sleep(2)
    print(f"later is done with {x}")
    return x + 1


@app.local_entrypoint()
def main():
    train_long.remote()


@app.local_entrypoint()
def leave_behind():
    call = later.spawn(41)
    print(f"\n## call {json.dumps(call.object_id)}", flush=True)
