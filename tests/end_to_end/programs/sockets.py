"""The socket calls that torchrun's rendezvous, Ray's start and a plain TCP all-reduce make, on a cluster of any size."""

import ipaddress
import json
import os
import socket
import threading
import time

import modal

SIZE = int(os.environ.get("CLUSTER_SIZE", "3"))      # read where the client runs, to make clusters of different sizes
PORT = 29500
app = modal.App("sockets")


@app.function(gpu="H100:8")
@modal.clustered(size=SIZE)
def meet():
    """What each rank finds, gathered on rank 0 over both families."""
    cluster = modal.Cluster.from_context()
    rank, both = cluster.container_rank(), [cluster.container_ips(), cluster.container_ips(family="ipv4")]
    findings = {
        "rank": rank,
        "ips": both,
        "hostname": socket.gethostname(),
        "torchrun": [[is_this_machine(address) for address in family] for family in both],
        "ray": [own_address_towards(both[1][0]), socket.gethostbyname(socket.gethostname())],
        "port_of_mine": [hairpin(family[rank]) for family in both],
    }
    return [gather(rank, ips, findings) for ips in both]


@app.function(gpu="H100:8")
@modal.clustered(size=SIZE)
def all_reduce(length, wait):
    """A ring over IPv6, then one over IPv4: every rank ends with the sum over all ranks of (rank + 1) * i, in each place i."""
    cluster = modal.Cluster.from_context()
    rank = cluster.container_rank()
    print(f"rank {rank} is there")
    while wait and not os.path.exists("/tmp/go"):
        time.sleep(0.05)
    for ips in (cluster.container_ips(), cluster.container_ips(family="ipv4")):
        total = ring_sum(rank, ips, [(rank + 1) * i for i in range(length)])
        factor = len(ips) * (len(ips) + 1) // 2
        assert total == [factor * i for i in range(length)], f"rank {rank}: {total[:5]}"
    print(f"rank {rank} has the sum")
    return sum(total)


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def bind(dies):
    """Binds the usual port without SO_REUSEADDR, with a connection open; then the container may die of it."""
    cluster = modal.Cluster.from_context()
    rank, ips = cluster.container_rank(), cluster.container_ips()
    if rank == 0:
        door = socket.socket(socket.AF_INET6)
        door.bind((ips[0], PORT))
        door.listen()
        peer, _ = door.accept()
        peer.recv(1)
        if dies:
            os.kill(os.getpid(), 9)
        return os.environ["MODAL_TASK_ID"]
    with connect(ips[0]) as leader:
        leader.sendall(b"x")
        return leader.recv(1)


def is_this_machine(host):
    """As torch.distributed.elastic.rendezvous.utils._matches_machine_hostname decides whether to host the store."""
    if host == socket.gethostname():
        return True
    own = socket.getaddrinfo(socket.gethostname(), None, proto=socket.IPPROTO_TCP, flags=socket.AI_CANONNAME)
    return any(info[3] == host or ipaddress.ip_address(info[4][0]) == ipaddress.ip_address(host) for info in own)


def own_address_towards(address):
    """As ray._private.services.node_ip_address_from_perspective finds what `ray start` announces."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 53))
        return probe.getsockname()[0]


def family_of(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def hairpin(address):
    """A container reaches itself by its own cluster address."""
    with socket.create_server((address, 0), family=family_of(address)) as door:
        port = door.getsockname()[1]
        with socket.create_connection((address, port), timeout=10) as there:
            here, peer = door.accept()
            here.close()
            return peer[0] == address and there.recv(1) == b""


def connect(address, port=PORT):
    """The other side may open its door a little later."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((address, port), timeout=60)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def gather(rank, ips, value):
    if rank > 0:
        with connect(ips[0]) as leader:
            leader.sendall(json.dumps(value).encode())
        return []
    values = [value]
    with socket.create_server((ips[0], PORT), family=family_of(ips[0])) as door:
        for _ in ips[1:]:
            peer, _ = door.accept()
            with peer:
                values.append(json.loads(peer.makefile().read()))
    return sorted(values, key=lambda one: one["rank"])


def ring_sum(rank, ips, numbers):
    """Each rank passes on what it got, size - 1 times, and adds it to its own."""
    door = socket.create_server((ips[rank], PORT), family=family_of(ips[0]))
    right = connect(ips[(rank + 1) % len(ips)])
    left, _ = door.accept()
    incoming, total, passing = left.makefile("rb"), list(numbers), list(numbers)
    for _ in ips[1:]:
        sender = threading.Thread(target=right.sendall, args=(json.dumps(passing).encode() + b"\n",))
        sender.start()
        passing = json.loads(incoming.readline())
        sender.join()
        total = [a + b for a, b in zip(total, passing, strict=True)]
    for one in (right, left, door):
        one.close()
    return total


@app.local_entrypoint()
def torchrun_and_ray():
    say("findings", meet.remote())


@app.local_entrypoint()
def ring(length: int = 1000, wait: bool = False):
    say("sum", all_reduce.remote(length, wait))


@app.local_entrypoint()
def bind_twice():
    try:
        bind.remote(True)
    except Exception as error:
        say("first", str(error))
    say("second", bind.remote(False))


def say(name, value):
    print(f"\n## {name} {json.dumps(value)}", flush=True)
