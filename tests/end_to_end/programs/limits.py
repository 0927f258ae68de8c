"""What a container may use, what becomes of one that takes more, and large values on the way in and out."""

import json
import os
import resource
import signal

import modal

app = modal.App("limits")
MIB = 2**20


@app.function(gpu="H100:8", memory=(128, 400))
@modal.clustered(size=2)
def measure():
    shm = os.statvfs("/dev/shm")
    return {
        "shm": shm.f_blocks * shm.f_frsize,
        "locked": resource.getrlimit(resource.RLIMIT_MEMLOCK),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }


@app.function(gpu="H100:8", memory=(128, 300))
@modal.clustered(size=3)
def eat(how):
    import time

    if modal.Cluster.from_context().container_rank() == 2:
        if how == "memory":
            held = bytearray(500 * MIB)
            held[::4096] = b"x" * len(held[::4096])
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


@app.function()
def echo(value):
    return value


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def echo_of_a_cluster(value):
    return value


@app.local_entrypoint()
def inside():
    say("limits", measure.remote())


@app.local_entrypoint()
def out_of_memory():
    say("memory", failure(lambda: eat.remote("memory")))
    say("kill", failure(lambda: eat.remote("kill")))


@app.local_entrypoint()
def large(sizes: str):
    for size in map(int, sizes.split(",")):
        value = os.urandom(size)
        say(f"plain_{size}", echo.remote(value) == value)
        say(f"spawned_{size}", echo.spawn(value).get() == value)
        say(f"cluster_{size}", echo_of_a_cluster.remote(value) == value)


def failure(action):
    try:
        return f"returned {action()!r}"
    except Exception as error:
        return str(error)


def say(name, value):
    print(f"\n## {name} {json.dumps(value)}", flush=True)
