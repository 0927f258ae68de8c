"""Variables that a program brings along, as its containers see them. Said in lines "## name json"."""

import inspect
import json
import os

import modal
import modal.experimental

clustered = getattr(modal, "clustered", None) or modal.experimental.clustered
app = modal.App("variables")
NAMES = ("GREETING", "FROM_HERE", "PYTHONPATH", "MODAL_TASK_ID")
secret = modal.Secret.from_dict({"GREETING": "hello", "PYTHONPATH": "/opt/mine"})
here = modal.Secret.from_local_environ(["FROM_HERE"]) if modal.is_local() else modal.Secret.from_dict({})
env = {"env": {"GREETING": "hello from env"}} if "env" in inspect.signature(app.function).parameters else {}


@app.function(secrets=[secret, here], **env)
def plain():
    return {name: os.environ.get(name) for name in NAMES}


@app.function(gpu="H100:8", secrets=[secret, here])
@clustered(size=2)
def cluster():
    print("## rank", json.dumps([os.environ["GREETING"], os.environ["FROM_HERE"]]))
    return os.environ["GREETING"]


@app.local_entrypoint()
def main():
    print("## plain", json.dumps(plain.remote()))
    print("## cluster", json.dumps(cluster.remote()))
