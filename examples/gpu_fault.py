# The step-by-step guide's parts on failure: a timeout, a startup timeout, a retry policy, and a container that takes no more inputs
# after a GPU fault.
#
#     phalanx run --nodes 4 examples/gpu_fault.py
import modal
import modal.experimental

app = modal.App("gpu-fault")


@app.function(
    gpu="B300:8",
    timeout=60 * 60 * 24,
    startup_timeout=30 * 60,
    retries=modal.Retries(initial_delay=0.0, max_retries=10),
)
@modal.clustered(size=4, rdma=True)
def train_model(faulty: bool):
    rank = modal.Cluster.from_context().container_rank()
    try:
        if faulty:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
    except RuntimeError as error:
        print(f"rank {rank}: {error}")
        modal.experimental.stop_fetching_inputs()
        return "stopped after a fault"
    return "trained"


@app.local_entrypoint()
def main():
    print("returned:", train_model.remote(faulty=True))
    print("returned:", train_model.remote(faulty=False))
