"""A cluster that fails once and is told why, and one that fails for good."""

import json
import os
import socket
import time

import modal

app = modal.App("attempts")
retries = modal.Retries(max_retries=1, initial_delay=1.0, backoff_coefficient=1.0)


def talk_until_rank_1_dies() -> None:
    """Rank 0 listens and rank 1 connects; then rank 1 dies, and rank 0 sees its socket close."""
    cluster = modal.Cluster.from_context()
    if cluster.container_rank() == 0:
        with socket.create_server(("::", 29500), family=socket.AF_INET6) as server:
            peer, _ = server.accept()
            if not peer.recv(1):
                raise ConnectionResetError("socket closed by rank 1")
    for _ in range(100):
        try:
            peer = socket.create_connection((cluster.container_ips()[0], 29500), timeout=5)
            break
        except OSError:
            time.sleep(0.1)
    for step in range(3):
        print(f"step {step}", flush=True)
    os._exit(3)


@app.function(gpu="H100:8", retries=retries, experimental_options={"grace_period": 5})
@modal.clustered(size=2)
def second_time():
    if os.environ["PHALANX_ATTEMPT"] == "1":
        talk_until_rank_1_dies()
    return os.environ["PHALANX_ATTEMPT"], os.environ["PHALANX_LAST_END"]


@app.function(gpu="H100:8", experimental_options={"grace_period": 5})
@modal.clustered(size=2)
def never():
    talk_until_rank_1_dies()


@app.local_entrypoint()
def main():
    print("## second", json.dumps(second_time.remote()))
    try:
        never.remote()
    except Exception as error:
        print("## never", json.dumps(str(error)))
