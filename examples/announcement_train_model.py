# The program of the announcement, with an app and an entrypoint around it: four nodes of eight B300 with RDMA.
#
#     phalanx run --nodes 4 examples/announcement_train_model.py
import modal

app = modal.App("announcement-train-model")


@app.function(gpu="B300:8")
@modal.clustered(size=4, rdma=True)
def train_model():
    cluster = modal.Cluster.from_context()
    container_ips = cluster.container_ips()
    container_rank = cluster.container_rank()

    world_size = len(container_ips)
    main_addr = container_ips[0]

    print(f"{container_rank=} {world_size=} {main_addr=}")


@app.local_entrypoint()
def main():
    train_model.remote()
