"""Pi by all ranks: each sends its slice to rank 0 over the cluster's own network, and that calls a plain function with the sum."""

import json
import socket

import modal

SIZE = 4
app = modal.App("pi")


@app.function()
def pretty(x):
    return f"pi is about {x:.6f}"


@app.cls(gpu="H100:8", timeout=60)
@modal.clustered(size=SIZE)
class Pi:
    steps: int = modal.parameter(default=40_000)

    @modal.enter()
    def meet(self):
        cluster = modal.Cluster.from_context()
        self.rank, self.ips = cluster.container_rank(), cluster.container_ips()
        if self.rank == 0:
            self.server = socket.create_server(("::", 4711), family=socket.AF_INET6)

    @modal.method()
    def compute(self, scale):
        step = 1.0 / self.steps
        part = step * sum(4 / (1 + ((i + 0.5) * step) ** 2) for i in range(self.rank, self.steps, SIZE))
        if self.rank:
            with socket.create_connection((self.ips[0], 4711), timeout=20) as connection:
                connection.sendall(json.dumps(part).encode())
            return None
        for _ in range(SIZE - 1):
            connection, _ = self.server.accept()
            with connection:
                part += json.loads(b"".join(iter(lambda c=connection: c.recv(4096), b"")))
        return pretty.remote(part * scale)

    @modal.exit()
    def bye(self):
        print("bye from", self.rank)


@app.local_entrypoint()
def main():
    pi = Pi(steps=20_000)
    print("## remote", json.dumps(pi.compute.remote(1.0)))
    print("## map", json.dumps(list(pi.compute.map([1.0, 2.0]))))
    call = pi.compute.spawn(10.0)
    print("## spawn", json.dumps(modal.FunctionCall.from_id(call.object_id).get(timeout=60)))
