# A training loop that loses nothing: interrupted, moved or killed, it goes on at the step where it was.
#
#     phalanx run --nodes 3 examples/checkpoint_resume.py
#     phalanx node drain --now NODE        # meanwhile: the cluster is interrupted, and goes on elsewhere
#
# Linear regression by gradient descent; each rank has a part of the data, and gradients are summed over TCP by rank 0.
#
# A cluster that must leave its nodes gets KeyboardInterrupt on every rank and has a grace period (30 s, or
# `experimental_options={"grace_period": …}`); rank 0 uses it to save. Then the same input runs again on other nodes, and begins with
# what was saved. A rank that is killed has no time to save, so rank 0 also does it every few steps; the steps since are done again.
#
# Phalanx has no volumes yet. Here a plain class with one container keeps the checkpoint: it sits on another node than the cluster, and
# lives on when the cluster and the control plane do not. It is memory, though: what must outlive the fleet goes to a store of yours
# from `save` (S3, a database: containers reach what your machines reach).
import os
import socket
import time
from contextlib import closing

import modal

WORLD = 2
PORT = 29500
RATE = 0.05
SAVE_EVERY = 10
app = modal.App("checkpoint-resume")


@app.cls(max_containers=1, scaledown_window=3600)
class Checkpoints:
    @modal.enter()
    def begin(self):
        self.kept = {}

    @modal.method()
    def save(self, run, state):
        """The furthest state of a run wins: a late word of an attempt that is over changes nothing."""
        if run not in self.kept or state["step"] > self.kept[run]["step"]:
            self.kept[run] = state

    @modal.method()
    def load(self, run):
        return self.kept.get(run)


@app.function(gpu="H100:8", timeout=3600, experimental_options={"grace_period": "20"})
@modal.clustered(size=WORLD)
def train(run, steps, pause=0.1):
    cluster = modal.Cluster.from_context()
    rank, leader = cluster.container_rank(), cluster.container_ips()[0]
    store = Checkpoints()
    state = store.load.remote(run) or first_state()
    attempt = os.environ.get("PHALANX_ATTEMPT", "1")
    print(f"rank {rank}: attempt {attempt} begins at step {state['step']}; {os.environ.get('PHALANX_LAST_END', '')}")
    try:
        with closing(Ring(rank, leader)) as ring:
            while state["step"] < steps:
                # One assignment changes it all: an interrupt falls before it or after it, and never in between.
                state = next_state(state, ring.sum(gradient_and_loss(state["weights"], rank)))
                if rank == 0:
                    print(f"step {state['step']} loss {state['losses'][-1]:.6f}")
                    if state["step"] % SAVE_EVERY == 0:
                        store.save.remote(run, state)
                time.sleep(pause)
    finally:
        # The interrupt; or a peer that had it a moment earlier and has closed its connection.
        if rank == 0:
            store.save.remote(run, state)
            print(f"rank 0: saved step {state['step']}")
    return state["losses"]


@app.local_entrypoint()
def main(steps: int = 200, pause: float = 0.1):
    losses = train.remote("first", steps, pause)
    print("\n## losses", losses, flush=True)


# ---------------------------------------------------------------- the model


def first_state():
    return {"step": 0, "weights": [0.0, 0.0, 0.0], "losses": []}


def shard(rank):
    """Points of y = 1 - 2 a + 3 b, this rank's part of them."""
    points = [(n % 7 - 3, n % 5 - 2) for n in range(70)]
    return [(a, b, 1 - 2 * a + 3 * b) for a, b in points[rank::WORLD]]


def gradient_and_loss(weights, rank):
    sums = [0.0, 0.0, 0.0, 0.0]
    for a, b, y in shard(rank):
        error = weights[0] + weights[1] * a + weights[2] * b - y
        for at, part in enumerate((error, error * a, error * b, error * error)):
            sums[at] += part / 70
    return sums


def next_state(state, sums):
    weights = [weight - RATE * part for weight, part in zip(state["weights"], sums, strict=False)]
    return {"step": state["step"] + 1, "weights": weights, "losses": [*state["losses"], sums[3]]}


class Ring:
    """Sums over all ranks: rank 0 adds, in the order of ranks, and tells everybody the same."""

    def __init__(self, rank, leader):
        family = socket.AF_INET6 if ":" in leader else socket.AF_INET
        self.peers = []
        if rank == 0:
            with socket.create_server((leader, PORT), family=family) as listener:
                listener.settimeout(60)
                arrived = {}
                for _ in range(WORLD - 1):
                    stream = listener.accept()[0].makefile("rw")
                    arrived[int(stream.readline())] = stream
            self.peers = [arrived[other] for other in sorted(arrived)]
        else:
            self.leader = _reach(leader, family).makefile("rw")
            _say(self.leader, str(rank))

    def sum(self, values):
        if not hasattr(self, "leader"):
            for theirs in [_numbers(peer) for peer in self.peers]:
                values = [mine + its for mine, its in zip(values, theirs, strict=True)]
            for peer in self.peers:
                _say(peer, " ".join(map(repr, values)))
            return values
        _say(self.leader, " ".join(map(repr, values)))
        return _numbers(self.leader)

    def close(self):
        for stream in self.peers or [self.leader]:
            stream.close()


def _reach(leader, family):
    """Rank 0 listens a moment after it was let go, like everybody."""
    ends = time.monotonic() + 60
    while True:
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.connect((leader, PORT))
            return connection
        except ConnectionRefusedError:
            connection.close()
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)


def _numbers(stream):
    line = stream.readline()
    if not line.endswith("\n"):
        raise ConnectionError("a peer is gone")
    return [float(word) for word in line.split()]


def _say(stream, line):
    stream.write(line + "\n")
    stream.flush()
