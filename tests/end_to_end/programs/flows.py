"""Every way to call a plain function, for any client. What came back is said in lines "## name json", which the test reads."""

import json
import time

import modal

app = modal.App("flows")


@app.function()
def square(x):
    return x * x


@app.function()
def add(x, y):
    return x + y


@app.function()
async def double(x):
    return 2 * x


@app.function()
def count(n):
    yield from range(n)


@app.function()
def fail(x):
    raise ValueError(f"{x} is not good")


@app.function()
def outer(x):
    return square.remote(x) + 1


@app.function(serialized=True)
def serialized(x):
    return x + 100


@app.function(i6pn=True)
def private_address():
    import socket

    return socket.getaddrinfo("i6pn.modal.local", None, socket.AF_INET6)[0][4][0]


@app.function()
@modal.concurrent(max_inputs=4)
def together(x):
    """Returns only when four of its kind are open at once in one container."""
    HERE.append(x)
    while len(HERE) < 4:
        time.sleep(0.01)
    return x


HERE = []


@app.function()
def sleep():
    time.sleep(3600)


@app.cls()
class Counter:
    start: int = modal.parameter(default=3)

    @modal.enter()
    def begin(self):
        self.value = self.start * 10

    @modal.method()
    def plus(self, x):
        return self.value + x

    @modal.exit()
    def end(self):
        print("counter says goodbye")


@app.local_entrypoint()
def main():
    say("remote", square.remote(4))
    say("map", list(square.map(range(20))))
    say("starmap", list(add.starmap([(1, 2), (3, 4)])))
    say("async", double.remote(5))
    say("generator", list(count.remote_gen(5)))
    say("nested", outer.remote(6))
    say("serialized", serialized.remote(1))
    say("i6pn", private_address.remote())
    say("concurrent", sorted(together.map(range(4))))
    say("class", [Counter().plus.remote(1), Counter(start=7).plus.remote(1)])
    say("exception", caught(lambda: fail.remote(1)))
    say("map_exceptions", [str(e) for e in fail.map([1, 2], return_exceptions=True)])
    call = square.spawn(9)
    say("spawn", [call.get(), modal.FunctionCall.from_id(call.object_id).get()])
    if hasattr(square, "spawn_map"):
        square.spawn_map([1, 2, 3])
    call = sleep.spawn()
    say("not_yet", caught(lambda: call.get(timeout=0.5)))
    call.cancel()
    say("cancelled", caught(call.get))


def say(name, value):
    print(f"\n## {name} {json.dumps(value)}", flush=True)


def caught(action):
    try:
        return f"returned {action()!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
