"""From a Prepare to a container that waits for its Start, or to a refusal with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from grpclib.exceptions import GRPCError

from phalanx.engines.local import LocalNode
from phalanx.protocol import agent_pb2

from .addresses import NoAddress, Ranges, process_addresses
from .cards import Cards, NoCard
from .container import Container, Send
from .gpus import find_gpus
from .launching import Launcher, LaunchFailed
from .layers import BadLayer, Layers
from .outfit import Addresses, Fleet, outfit
from .remains import Remains
from .zygotes import Zygotes

T = TypeVar("T")
Fetch = Callable[[str], AsyncIterator[agent_pb2.LayerFile]]


class Refused(Exception):
    """This container can't be served here. `user_fault`: because of what it is, not of what the node is."""

    def __init__(self, code: str, sentence: str, user_fault: bool = False) -> None:
        super().__init__(sentence)
        self.code, self.user_fault = code, user_fault


class Preparer:
    """`ranges` is None for plain processes, and while there is no container network (`network_failure` says why)."""

    def __init__(self, fleet: Fleet, launcher: Launcher, layers: Layers, nodes: dict[str, LocalNode], remains: Remains) -> None:
        self.fleet, self.launcher, self.layers, self.nodes, self.remains = fleet, launcher, layers, nodes, remains
        self.ranges: Ranges | None = None
        self.network_failure = "the server has not said yet which workspace this is"
        self.zygotes = Zygotes(fleet, launcher, fleet.containers.parent / "zygotes")
        self.cards = Cards() if fleet.simulated else Cards(find_gpus().cards)

    async def prepare(self, ask: agent_pb2.Prepare, fetch: Fetch, send: Send) -> Container:
        """Raises Refused. Cancelled, it undoes what it did before it ends."""
        self._check_servable(ask)
        name = f"{ask.assignment}-{ask.rank}"
        try:
            folders = await asyncio.gather(*(self.layers.folder_of(layer, fetch) for layer in ask.layer_ids))
            cards = [] if self.fleet.simulated else self.cards.take(name, ask.gpu_count)
            spec = await _to_its_end(asyncio.to_thread(
                outfit, ask, self.fleet, list(folders), self._addresses(name, ask), cards, self.nodes[ask.node_id].memory_mib,
                self.zygotes.socket_for))
            self.zygotes.warm(list(folders))
            container = Container(spec, self.launcher, send)
            await self._launch(container)
        except (BadLayer, GRPCError) as error:
            await self.forget(name)
            raise Refused("image", f"the files of the image could not be fetched: {error}") from error
        except (LaunchFailed, NoAddress, NoCard, OSError) as error:
            await self.forget(name)
            raise Refused("runtime", f"the container could not be prepared on {ask.node_id}: {error}") from error
        except BaseException:
            await self.forget(name)
            raise
        return container

    async def forget(self, name: str) -> None:
        """The container's folders, addresses and cards; its processes and network are gone already."""
        for folder in (self.fleet.containers / name, self.fleet.run / name):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self.cards.free(name)
        if self.ranges is not None:
            self.ranges.free(name)

    async def _launch(self, container: Container) -> None:
        """A shim comes to be, or not: nothing may interrupt that, and an interruption meanwhile undoes it afterwards."""
        launching = asyncio.create_task(container.launch())
        try:
            await asyncio.shield(launching)
        except asyncio.CancelledError:
            await asyncio.wait({launching})
            if launching.exception() is None:
                await container.release()
            raise
        except OSError:      # a shim that nobody can talk to
            with contextlib.suppress(LaunchFailed):
                await self.launcher.ask(task="sweep", folder=container.spec.folder)
            raise

    def _check_servable(self, ask: agent_pb2.Prepare) -> None:
        if ask.node_id not in self.nodes:
            raise Refused("node", f"this agent has no node {ask.node_id!r}; it has {', '.join(self.nodes)}")
        if remains := self.remains.of(ask.node_id):
            raise Refused("node", f"node {ask.node_id} takes no work: {remains}")
        minor = self.fleet.image.minor
        if ask.python_version and ask.python_version != minor:
            raise Refused(
                "image", f"the image wants Python {ask.python_version}; this node's own Python is {minor}, and other images can't be "
                f"served yet. Use modal.Image.debian_slim(python_version=\"{minor}\")", user_fault=True)
        if self.fleet.runtime != "process" and self.ranges is None:
            raise Refused("network", f"node {ask.node_id} has no container network: {self.network_failure}")

    def _addresses(self, name: str, ask: agent_pb2.Prepare) -> Addresses:
        if self.ranges is None:
            return process_addresses(self.fleet.agent_id, ask.assignment, ask.rank)
        return self.ranges.take(name, way_out=not ask.block_network)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """A thread can't be cancelled: what undoes its work must wait for it, or it writes folders again that were just removed."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
