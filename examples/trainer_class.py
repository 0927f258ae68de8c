# "The decorator also supports functions defined as a class, provided the class exposes exactly one method."
#
#     phalanx run examples/trainer_class.py
import modal

app = modal.App("trainer-class")


@app.cls(gpu="H100:8", timeout=60 * 60)
@modal.clustered(size=2)
class Trainer:
    learning_rate: str = modal.parameter(default="0.1")

    @modal.enter()
    def join(self):
        cluster = modal.Cluster.from_context()
        self.rank = cluster.container_rank()
        self.world_size = len(cluster.container_ips())
        print(f"rank {self.rank} of {self.world_size} is ready")

    @modal.method()
    def train(self, steps: int):
        return {"rank": self.rank, "world_size": self.world_size, "learning_rate": self.learning_rate, "steps": steps}

    @modal.exit()
    def leave(self):
        print(f"rank {self.rank} leaves")


@app.local_entrypoint()
def main():
    print("returned:", Trainer(learning_rate="0.3").train.remote(steps=5))
