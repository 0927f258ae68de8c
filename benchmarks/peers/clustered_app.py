"""The program that is deployed on Phalanx and called: a function whose cluster ends with its call, and one whose cluster stays."""

import json
import os
import time

import modal

SIZE = int(os.environ.get("BENCH_SIZE", "2"))       # when it is deployed; in the containers the server knows it
app = modal.App(f"bench-launch-{SIZE}")
stamps: dict[str, float] = {}


@app.function(gpu="H100:8", timeout=120, single_use_containers=True)
@modal.clustered(size=SIZE)
def cold(call: str) -> int:
    return note(call, tell=True)


@app.function(gpu="H100:8", timeout=120, scaledown_window=600)
@modal.clustered(size=SIZE)
def warm(call: str, tell: bool) -> int:
    return note(call, tell)


def note(call: str, tell: bool) -> int:
    stamps[call] = time.monotonic()         # the first statement of user code
    if tell:                                # a line in the log costs time: warm calls leave it to the last one
        print("stamps " + json.dumps(stamps), flush=True)
    return 0
