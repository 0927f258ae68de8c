"""The server comes and goes; those who wait at the front see nothing of it."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpclib.client
import pytest
from front_process import RunningFront, front_command
from grpclib import GRPCError, Status
from grpclib.exceptions import StreamTerminatedError
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_grpc
from modal_proto import api_pb2 as api
from one_call_server import OneCallServer

from phalanx.front.away import RETRY_AFTER_S
from phalanx.front.loan import FrontAbsent, Loan, LoanRefused, ask_state, borrow
from phalanx.paths import Paths
from phalanx.protocol import agent_grpc, agent_pb2

PROGRAM = '''
import modal

app = modal.App("waiting")

@app.function()
def f():
    return 0

@app.local_entrypoint()
def main():
    print("returned:", f.remote())
'''


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


@contextmanager
def fake_server(paths: Paths) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).with_name("one_call_server.py")), str(paths.state)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "serving\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_modal_run_waits_through_kill_9_of_the_server(front: RunningFront, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    state = front.paths.state
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODAL")}
    environment |= {"MODAL_SERVER_URL": f"http://{front.listen}", "MODAL_TOKEN_ID": "ak-1", "MODAL_TOKEN_SECRET": "as-1",
                    "MODAL_CONFIG_PATH": str(tmp_path / "none.toml")}
    with fake_server(front.paths) as server:
        client = subprocess.Popen([sys.executable, "-m", "modal", "run", str(program)], env=environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wait_until((state / "waiting").exists, "the client waits for its output")
        server.send_signal(signal.SIGKILL)
        server.wait()
    wait_until(lambda: ask_state(front.paths.front_socket)["waiting"], "the client waits at the front")
    (state / "answer").write_bytes(pickle.dumps(42))
    with fake_server(front.paths):
        output, _ = client.communicate(timeout=60)
    assert client.returncode == 0, output
    assert "returned: 42" in output
    assert "rror" not in output


def test_only_one_server_has_the_sockets(front: RunningFront) -> None:
    async def story() -> None:
        loan = await borrow(front.paths.front_socket)
        with pytest.raises(LoanRefused, match=f"process {os.getpid()} is this state's server") as refused:
            await borrow(front.paths.front_socket)
        assert refused.value.pid == os.getpid()
        loan.give_back()
        (await borrow(front.paths.front_socket)).give_back()        # the next one gets them at once

    asyncio.run(story())


def test_the_server_notices_when_the_front_is_gone(front: RunningFront) -> None:
    async def story() -> None:
        loan = await borrow(front.paths.front_socket)
        front.process.terminate()
        await asyncio.wait_for(loan.lost.wait(), 20)
        front.process.wait()

    asyncio.run(story())


def test_without_a_front_the_server_is_told_what_to_start(paths: Paths) -> None:
    with pytest.raises(FrontAbsent, match="no front listens at .*phalanx up"):
        asyncio.run(borrow(paths.front_socket))


def test_a_front_answers_until_the_server_says_that_it_serves(front: RunningFront) -> None:
    async def story() -> None:
        loan = await borrow(front.paths.front_socket)
        async with client(front.listen) as stub:
            await stub.AppHeartbeat(api.AppHeartbeatRequest(app_id="ap-1"))       # recovery takes its time
        server = await serve(loan, front.paths)
        async with client(front.listen) as stub:
            created = await stub.AppCreate(api.AppCreateRequest())
        assert created.app_id == "ap-1"
        server.close()
        await server.wait_closed()
        loan.give_back()

    asyncio.run(story())


def test_an_idle_runner_is_answered_and_sent_over_when_the_server_returns(front: RunningFront) -> None:
    """A byte pipe of a shim: preamble and first bytes of HTTP/2 in one packet."""
    async def story() -> None:
        async with client(front.listen, TasksChannel(front.paths, b"PHALANX/1 task ta-1 7 secret\n")) as stub:
            asking = asyncio.create_task(stub.FunctionGetInputs(api.FunctionGetInputsRequest(function_id="fu-1")))
            putting = asyncio.create_task(stub.FunctionPutOutputs(api.FunctionPutOutputsRequest()))
            await until(lambda: ask_state(front.paths.front_socket)["waiting"] == 1)
            loan = await borrow(front.paths.front_socket)
            await asyncio.sleep(0)
            assert not asking.done() and not putting.done()
            server = await serve(loan, front.paths)
            assert not (await asking).inputs
            with pytest.raises(StreamTerminatedError):      # the runner sends it again, for ever
                await putting
            server.close()
            await server.wait_closed()
        loan.give_back()

    asyncio.run(story())


def test_a_blob_in_transfer_waits_for_the_server(front: RunningFront) -> None:
    async def story() -> None:
        host, _, port = front.listen.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PUT /blobs/bl-1 HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\nabcde")
        await until(lambda: ask_state(front.paths.front_socket)["waiting"] == 1)
        loan = await borrow(front.paths.front_socket)
        await loan.serving()
        assert await reader.read() == b""       # whoever sends it sends it again
        writer.close()
        loan.give_back()

    asyncio.run(story())


def test_an_agent_is_told_that_the_server_is_away(front: RunningFront) -> None:
    async def story() -> None:
        channel = TasksChannel(front.paths, b"PHALANX/1 agent\n")
        with pytest.raises(GRPCError, match="server is not running") as refused:
            async with agent_grpc.AgentsStub(channel).Session.open() as session:
                await session.send_message(agent_pb2.FromAgent())
                await session.recv_message()
        assert refused.value.status is Status.UNAVAILABLE
        channel.close()

    asyncio.run(story())


def test_whoever_says_no_preamble_is_shown_out(front: RunningFront) -> None:
    async def story() -> None:
        reader, writer = await asyncio.open_unix_connection(front.paths.tasks_socket)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            assert await reader.read() == b""
            raise ConnectionResetError      # either way it is gone
        writer.close()

    asyncio.run(story())


def test_a_port_in_use_is_said(front: RunningFront, tmp_path: Path) -> None:
    other = Paths(tmp_path / "other")
    said = subprocess.run(front_command(other, front.listen), capture_output=True, text=True)
    assert said.returncode == 1
    assert said.stderr == f"phalanx front: {front.listen} is in use: stop what listens there, or choose another with --listen\n"
    (other.run / "front.lock").unlink()
    other.run.rmdir()


def test_a_second_front_of_one_state_is_refused(front: RunningFront) -> None:
    said = subprocess.run(front_command(front.paths), capture_output=True, text=True)
    assert said.returncode == 1
    assert "has a running front already" in said.stderr
    assert ask_state(front.paths.front_socket)["pid"] == front.process.pid      # and the first one's sockets still work


def test_a_map_goes_on_where_it_was_and_a_poll_is_not_told_that_its_call_expired(front: RunningFront) -> None:
    async def story() -> None:
        async with client(front.listen) as stub:
            request = api.FunctionGetOutputsRequest(function_call_id="fc-1", timeout=0, last_entry_id="17-0")
            answer = await stub.FunctionGetOutputs(request, timeout=4)
            assert answer == api.FunctionGetOutputsResponse(last_entry_id="17-0", num_unfinished_inputs=1)

    asyncio.run(story())


def test_a_request_whose_deadline_comes_first_is_told_to_try_again(front: RunningFront) -> None:
    async def story() -> None:
        host, _, port = front.listen.rpartition(":")
        channel = grpclib.client.Channel(host, int(port), status_details_codec=custom_detail_codec)     # the client's own reading
        async with client(front.listen, channel) as stub:
            with pytest.raises(GRPCError) as refused:
                await stub.FunctionGetDynamicConcurrency(api.FunctionGetDynamicConcurrencyRequest(), timeout=2.5)
        assert refused.value.status is Status.UNAVAILABLE
        assert refused.value.details == [api.RPCRetryPolicy(retry_after_secs=RETRY_AFTER_S)]

    asyncio.run(story())


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition, "")


async def serve(loan: Loan, paths: Paths) -> Server:
    server = Server([OneCallServer(paths.state)])
    await server.start(sock=loan.public)
    await loan.serving()
    return server


class TasksChannel(grpclib.client.Channel):
    """Connects like a shim."""

    def __init__(self, paths: Paths, preamble: bytes) -> None:
        super().__init__(path=str(paths.tasks_socket))
        self._preamble = preamble

    def _protocol_factory(self) -> Any:
        protocol = super()._protocol_factory()
        made = protocol.connection_made

        def connection_made(transport: Any) -> None:
            transport.write(self._preamble)
            made(transport)

        protocol.connection_made = connection_made
        return protocol


class client:
    def __init__(self, listen: str, channel: grpclib.client.Channel | None = None) -> None:
        host, _, port = listen.rpartition(":")
        self._channel = channel or grpclib.client.Channel(host, int(port))

    async def __aenter__(self) -> api_grpc.ModalClientStub:
        return api_grpc.ModalClientStub(self._channel)

    async def __aexit__(self, *error: Any) -> None:
        self._channel.close()
