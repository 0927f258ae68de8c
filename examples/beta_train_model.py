# The program of the beta's notes, for clients up to 1.3.5 (`modal.gpu` is gone after it), with what it leaves out filled in.
#
#     phalanx run --nodes 4 examples/beta_train_model.py
import modal
import modal.experimental

app = modal.App("beta-train-model")


def run(train_args, group_size, world_size, container_rank, main_addr, nprocs_per_node):
    """Stands for the notes' training code."""
    print(f"{container_rank=} {world_size=} {main_addr=} {group_size=} {nprocs_per_node=} {train_args=}")


@app.function(
    gpu=modal.gpu.H100(count=8),
    timeout=60 * 60 * 24,
    retries=modal.Retries(initial_delay=0.0, max_retries=10),
)
@modal.experimental.clustered(size=4)
def train_model(train_args):
    cluster_info = modal.experimental.get_cluster_info()

    container_rank = cluster_info.rank
    main_addr = cluster_info.container_ips[0]
    world_size = len(cluster_info.container_ips)
    group_size = world_size

    run(
        train_args,
        group_size,
        world_size,
        container_rank,
        main_addr,
        nprocs_per_node=8,  # matches GPU count
    )


@app.local_entrypoint()
def main():
    train_model.remote({"learning_rate": 3e-4})
