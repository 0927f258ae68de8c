"""Stand-ins for server and agent: python stand_in.py server|agent STATE. They write what they do into STATE/story."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
from pathlib import Path

from google.protobuf.wrappers_pb2 import StringValue
from grpclib.const import Cardinality, Handler
from grpclib.server import Server

sys.path.append(str(Path(__file__).parents[1] / "front"))
from one_call_server import OneCallServer  # noqa: E402

from phalanx.cli.supervisor import ready_path
from phalanx.front.loan import borrow
from phalanx.paths import Paths

NODE = {"node_id": "local-0", "state": "free", "gpu_type": "any", "gpu_count": 8, "simulated": True, "runtime": "process",
        "runtime_reason": "a stand-in", "guarantees": {"network": "no", "clean-up": "yes"}}
STATUS = {"server": {"version": "stand-in"}, "clusters": [],
          "waiting": [{"call": "fc-1", "function": "train", "reason": {"code": "x", "sentence": "3 of 4 nodes free", "numbers": {}}}]}


class Admin:
    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def __mapping__(self) -> dict[str, Handler]:
        return {"/phalanx.admin.v1.Admin/Status": Handler(self.status, Cardinality.UNARY_UNARY, StringValue, StringValue)}

    async def status(self, stream: object) -> None:
        await stream.recv_message()
        joined = "agent ready" in (self._paths.state / "story").read_text()
        await stream.send_message(StringValue(value=json.dumps(STATUS | {"nodes": [NODE] if joined else []})))


class AnsweringServer(OneCallServer):
    """Every call returns 42."""

    async def FunctionMap(self, request: object) -> object:
        (self._state / "answer").write_bytes(pickle.dumps(42))
        return await super().FunctionMap(request)


async def server(paths: Paths) -> None:
    if (paths.state / "broken").exists():
        sys.exit((paths.state / "broken").read_text())
    loan = await borrow(paths.front_socket)
    grpc = Server([Admin(paths), AnsweringServer(paths.state)])
    await grpc.start(sock=loan.public)
    await loan.serving()
    ready_path(paths).write_text(json.dumps({"pid": os.getpid(), "listen": loan.listen, "ready": True}))
    tell(paths, "server ready")
    await ended()
    ready_path(paths).unlink()
    tell(paths, "server ended")
    grpc.close()


async def agent(paths: Paths) -> None:
    tell(paths, "agent ready")
    await ended()
    tell(paths, "agent ended")


async def ended() -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    await end.wait()


def tell(paths: Paths, line: str) -> None:
    with (paths.state / "story").open("a") as story:
        story.write(f"{line}\n")


if __name__ == "__main__":
    asyncio.run({"server": server, "agent": agent}[sys.argv[1]](Paths(Path(sys.argv[2]))))
