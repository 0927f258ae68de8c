"""What works without any isolation: ranks have an IPv4 address each, and share the machine's files and its IPv6 loopback."""

import json
import time

import modal

app = modal.App("plain-processes")


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def ranks():
    cluster = modal.Cluster.from_context()
    ipv4 = cluster.container_ips(family="ipv4")
    own_addresses = len(set(ipv4)) == 2 and all(address.startswith("127.") for address in ipv4)
    return cluster.container_rank(), cluster.container_ips()[0], own_addresses


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def fail():
    if modal.Cluster.from_context().container_rank() == 1:
        raise KeyError("only rank 1")
    time.sleep(3600)


@app.function()
def square(x):
    return x * x


@app.local_entrypoint()
def main():
    say("ranks", ranks.remote())
    say("map", list(square.map([1, 2, 3])))
    try:
        fail.remote()
    except KeyError as error:
        say("exception", error.args)


def say(name, value):
    print(f"\n## {name} {json.dumps(value)}", flush=True)
