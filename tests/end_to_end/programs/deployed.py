"""A deployed app: a plain function, one that takes long, and a cluster."""

import time

import modal
import modal.experimental

clustered = getattr(modal, "clustered", None) or modal.experimental.clustered
app = modal.App("deployed")


@app.function()
def cube(x):
    print(f"cubing {x}")
    return x**3


@app.function()
def slumber():
    print("asleep")
    time.sleep(3600)


@app.function(gpu="H100:8")
@clustered(size=2)
def parade(x):
    print(f"a rank got {x}")
    return x
