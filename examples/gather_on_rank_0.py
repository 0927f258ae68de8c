# "Results from other ranks disappear. Gather results on rank 0 first": a sum over the ranks, by plain TCP on the private network.
#
#     phalanx run --nodes 4 examples/gather_on_rank_0.py
import socket
import time

import modal

app = modal.App("gather-on-rank-0")
PORT = 29500


@app.function(gpu="H100:8")
@modal.clustered(size=4)
def gather(base: int) -> int:
    cluster = modal.Cluster.from_context()
    rank, ips = cluster.container_rank(), cluster.container_ips()
    mine = base * (rank + 1)
    if rank > 0:
        with connect(ips[0]) as leader:
            leader.sendall(str(mine).encode())
        return mine  # dropped: only rank 0's value reaches the caller
    with socket.create_server((ips[0], PORT), family=socket.AF_INET6) as door:
        total = mine
        for _ in ips[1:]:
            peer, _ = door.accept()
            with peer:
                total += int(peer.makefile().read())
    return total


def connect(address: str) -> socket.socket:
    """The leader may open its door a little later than the others knock."""
    for _ in range(600):
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise TimeoutError(f"rank 0 does not listen on [{address}]:{PORT}")


@app.local_entrypoint()
def main(base: int = 10):
    print("returned:", gather.remote(base))
