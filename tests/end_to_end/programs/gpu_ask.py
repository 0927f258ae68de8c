"""A cluster of one node that asks for what $GPU_ASK says."""

import os

import modal

app = modal.App("gpu-ask")


@app.function(gpu=os.environ.get("GPU_ASK", "any"))
@modal.clustered(size=1)
def start():
    print("## started 1")


@app.local_entrypoint()
def main():
    start.remote()
    print("## ended 1")
