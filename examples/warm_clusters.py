# The guide's part on autoscaling: `min_containers` counts nodes, so that 8 keep two clusters of four warm once it is deployed.
#
#     modal deploy examples/warm_clusters.py
#     python -c "import modal; print(modal.Function.from_name('warm-clusters', 'serve').remote(20))"
import modal

app = modal.App("warm-clusters")


@app.function(gpu="H100:8", min_containers=8, max_containers=16, scaledown_window=300)
@modal.clustered(size=4)
def serve(number: int):
    cluster = modal.Cluster.from_context()
    if cluster.container_rank() == 0:
        return f"{cluster.object_id} answers {number}"
    return None
