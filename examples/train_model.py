# The first program of the clusters guide, with an app and an entrypoint around it: four nodes of eight H100.
#
#     phalanx run --nodes 4 examples/train_model.py
import modal

app = modal.App("train-model")


@app.function(
    gpu="H100:8",
    timeout=60 * 60 * 24,
    retries=modal.Retries(initial_delay=0.0, max_retries=10),
)
@modal.clustered(size=4)
def train_model():
    cluster = modal.Cluster.from_context()
    container_rank = cluster.container_rank()
    container_ips = cluster.container_ips()
    world_size = len(container_ips)
    main_addr = container_ips[0]
    is_main = "(main)" if container_rank == 0 else ""
    print(f"{container_rank=} {is_main} {world_size=} {main_addr=}")


@app.local_entrypoint()
def main():
    train_model.remote()
