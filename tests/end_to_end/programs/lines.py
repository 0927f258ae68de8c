"""What ranks write, and how they end while they write it."""

import json
import os
import socket
import subprocess
import sys
import time

import modal

app = modal.App("lines")


@app.function(gpu="H100:8")
@modal.clustered(size=4)
def four_ranks():
    rank = modal.Cluster.from_context().container_rank()
    for i in range(200):
        print(f"line {i} of {rank}")


@app.function()
def odd_bytes():
    emoji = "🦜".encode()
    for piece in (b"bad \x80 byte\n", b"split ", emoji[:2], emoji[2:], b"\n", b"a bar\r", b"the bar\n"):
        os.write(1, piece)
        time.sleep(0.05)


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def leave_without_newline():
    if modal.Cluster.from_context().container_rank() == 1:
        os.write(1, b"my last words")
        os._exit(3)
    time.sleep(3600)


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def save_when_stopped():
    """Rank 0 saves in Python, rank 1 in a Python behind a shell; both take a while."""
    rank = modal.Cluster.from_context().container_rank()
    code = f"""
import time
print("{rank} is ready", flush=True)
try:
    time.sleep(3600)
except BaseException:
    time.sleep(1)
    open("/tmp/saved", "w").write("state")
    print("{rank} saved its", open("/tmp/saved").read(), flush=True)
"""
    if rank == 0:
        exec(code)
    else:
        command = subprocess.Popen(["sh", "-c", f"{sys.executable} -c '{code}'; true"])
        try:
            command.wait()
        finally:
            command.wait()


@app.function(gpu="H100:8")
@modal.clustered(size=2)
def longer_than_any_host_name_größe_λ_日本語_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_onxxx():  # noqa: E501 - 200 characters
    return socket.gethostname(), [info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, proto=socket.IPPROTO_TCP)]


long_name = longer_than_any_host_name_größe_λ_日本語_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_on_and_so_onxxx  # noqa: E501


@app.local_entrypoint()
def ranks():
    four_ranks.remote()


@app.local_entrypoint()
def bytes_and_ends():
    odd_bytes.remote()
    try:
        leave_without_newline.remote()
    except Exception as error:
        print("failed:", error)


@app.local_entrypoint()
def name():
    print(f"\n## name {json.dumps(long_name.remote())}", flush=True)


@app.local_entrypoint()
def save():
    call = save_when_stopped.spawn()
    print(f'\n## call "{call.object_id}"', flush=True)
    try:
        call.get()
    except BaseException as error:
        print("ended:", type(error).__name__)
