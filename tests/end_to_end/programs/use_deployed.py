"""Calls the deployed app from a program of its own, as services do."""

import json

import modal

cube = modal.Function.from_name("deployed", "cube")
parade = modal.Function.from_name("deployed", "parade")
slumber = modal.Function.from_name("deployed", "slumber")


def say(name, value):
    print(f"\n## {name} {json.dumps(value)}", flush=True)


say("remote", cube.remote(5))
say("cluster", parade.remote("hello"))
call = cube.spawn(6)
say("spawn", modal.FunctionCall.from_id(call.object_id).get())
left = slumber.spawn()
try:
    left.get(timeout=0)
except TimeoutError:
    say("still_running", left.object_id)
