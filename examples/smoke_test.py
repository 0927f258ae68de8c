import modal

app = modal.App("cluster-smoke-test")

@app.function(gpu="H100:8", timeout=10 * 60)
@modal.clustered(size=2)
def hello():
    cluster = modal.Cluster.from_context()
    rank = cluster.container_rank()
    ips = cluster.container_ips()
    role = "(main)" if rank == 0 else ""
    print(f"container_rank={rank} {role} world_size={len(ips)} main_addr={ips[0]!r}")
    return rank

@app.local_entrypoint()
def main():
    print("returned:", hello.remote())
