# The guide's parts on ranks and networking in one program: who leads, and the addresses of both families.
#
#     phalanx run examples/ranks_and_addresses.py
import modal

app = modal.App("ranks-and-addresses")


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def addresses():
    cluster = modal.Cluster.from_context()
    container_rank = cluster.container_rank()
    if container_rank == 0:
        print("Running as the leader")
    else:
        print(f"Running as rank {container_rank}")

    container_ips = cluster.container_ips()
    print(f"The main container's IP is {container_ips[0]}")

    container_ips = cluster.container_ips(family="ipv4")
    print(f"The main container's IP is {container_ips[0]}")
    return cluster.container_ips(), container_ips


@app.local_entrypoint()
def main():
    ipv6, ipv4 = addresses.remote()
    print("returned:", len(ipv6), "IPv6 and", len(ipv4), "IPv4 addresses")
