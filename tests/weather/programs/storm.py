"""What people run while processes are killed: a cluster and a plain function, whose results can be checked by their arguments."""

import time

import modal

app = modal.App("storm")
RETRIES = modal.Retries(max_retries=8, initial_delay=0.0, backoff_coefficient=1.0)     # a killed rank is the user's failure


@app.function(gpu="H100:8", timeout=300, retries=RETRIES)
@modal.clustered(size=2)
def gang(x, seconds):
    rank = modal.Cluster.from_context().container_rank()
    work(seconds)
    return [x * x, rank]


@app.function(timeout=300, retries=RETRIES)
def plain(x, seconds):
    work(seconds)
    return x + 1


def work(seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.1)
