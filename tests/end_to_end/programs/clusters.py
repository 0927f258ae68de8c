"""Every way to call a clustered function, for any client. What came back is said in lines "## name json", which the test reads."""

import json

import modal
import modal.experimental

clustered = getattr(modal, "clustered", None) or modal.experimental.clustered
app = modal.App("clusters")


def me():
    """(rank, IPv6 addresses), by the newest interface that this client has."""
    if hasattr(modal, "Cluster"):
        cluster = modal.Cluster.from_context()
        return cluster.container_rank(), list(cluster.container_ips())
    info = modal.experimental.get_cluster_info()
    return info.rank, list(info.container_ips)


@app.function(gpu="H100:8", timeout=600)
@clustered(size=2)
def hello(x):
    rank, ips = me()
    print(f"rank {rank} of {len(ips)} got {x}")
    return [rank, ips, x]


@app.function(gpu="H100:8")
@clustered(size=2)
def count(n):
    rank, _ = me()
    for i in range(n):
        yield [rank, i]


@app.function(gpu="H100:8")
@clustered(size=2)
def fail():
    import time

    if me()[0] == 1:
        raise KeyError("only rank 1")
    time.sleep(3600)


@app.cls(gpu="H100:8")
@clustered(size=2)
class Trainer:
    factor: int = modal.parameter(default=3)

    @modal.enter()
    def join(self):
        self.rank, _ = me()
        print(f"rank {self.rank} enters")

    @modal.method()
    def train(self, steps):
        return [self.rank, self.factor * steps]

    @modal.exit()
    def leave(self):
        print(f"rank {self.rank} leaves")


@app.local_entrypoint()
def smoke():
    say("remote", hello.remote("smoke"))


@app.local_entrypoint()
def main():
    say("remote", hello.remote("first"))
    say("map", [[rank, x] for rank, _, x in hello.map([1, 2, 3])])
    call = hello.spawn("spawned")
    say("spawn", [call.get()[2], modal.FunctionCall.from_id(call.object_id).get()[2]])
    say("generator", list(count.remote_gen(3)))
    if not modal.__version__.startswith(("0.", "1.0.")):     # these ignore @clustered on a class: it is a plain one there
        say("class", [Trainer().train.remote(5), Trainer(factor=7).train.remote(5)])
    try:
        fail.remote()
    except KeyError as error:
        say("exception", error.args)


def say(name, value):
    print(f"\n## {name} {json.dumps(value)}", flush=True)
