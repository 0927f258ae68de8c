"""Calls the deployed storm until a time, then waits for all it has called. Writes what happens as lines of JSON:

{"made": call id, "function": name, "x": argument}      the call is acknowledged
{"got": call id, "value": …} or {"got": call id, "error": …}
{"mapped": [arguments], "values": […]} or {"mapped": …, "error": …}
{"refused": what the client raised before a call was acknowledged}
"""

import json
import random
import sys
import threading
import time

import modal

until, seed = time.time() + float(sys.argv[1]), int(sys.argv[2])
dice = random.Random(seed)
writing = threading.Lock()
numbers = iter(range(1, 10**9))


def say(**what):
    with writing:
        print(json.dumps(what), flush=True)


def told(error):
    return f"{type(error).__name__}: {error}"


def call(name, seconds):
    with writing:
        x = next(numbers)
    try:
        made = modal.Function.from_name("storm", name).spawn(x, seconds)
    except Exception as error:
        say(refused=told(error))
        time.sleep(1)
        return
    say(made=made.object_id, function=name, x=x)
    try:
        say(got=made.object_id, value=made.get())
    except Exception as error:
        say(got=made.object_id, error=told(error))


def map_some(seconds):
    with writing:
        xs = [next(numbers) for _ in range(6)]
    try:
        say(mapped=xs, values=list(modal.Function.from_name("storm", "plain").map(xs, kwargs={"seconds": seconds})))
    except Exception as error:
        say(mapped=xs, error=told(error))


def person(draws):
    while time.time() < until:
        what, seconds = draws.choice(["gang", "gang", "plain", "map"]), draws.choice([0.0, 0.5, 2.0, 5.0])
        if what == "map":
            map_some(min(seconds, 0.5))
        else:
            call(what, seconds)


people = [threading.Thread(target=person, args=(random.Random(f"{seed} {n}"),)) for n in range(3)]
for one in people:
    one.start()
for one in people:
    one.join()
say(done=True)
