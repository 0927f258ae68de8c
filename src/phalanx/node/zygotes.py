"""The agent's zygotes: one for each set of client layers, made when such a container is first prepared or announced, off its way."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import struct
import time
from pathlib import Path
from typing import Any

from . import forkable, gpus, spool
from .container import Container, left_behind
from .forkable import Zygote
from .launching import Launcher, LaunchFailed
from .outfit import INSIDE, Fleet, base_environment, client_search, process_search
from .saying import say, say_failure
from .spec import Limits, Spec, write_whole

MOST = 3                    # of different clients at once; each holds some 50 MB
_IMPORT_SECONDS = 120.0
_AGAIN_SECONDS = 10.0       # not sooner than this after its start is one that died made again


class Zygotes:
    def __init__(self, fleet: Fleet, launcher: Launcher, folder: Path) -> None:
        """`folder` is theirs alone, below the node's."""
        self.fleet, self.launcher, self.folder = fleet, launcher, folder
        self.ready: dict[str, Zygote] = {}
        self._bases: dict[str, list[Path]] = {}         # in the order of their last use
        self._containers: dict[str, Container] = {}
        self._useless: dict[str, str] = {}              # key → why none can be made
        self._lives: dict[str, asyncio.Task[None]] = {}
        self.enabled = fleet.runtime in ("crun", "runc", "process") and fleet.extra.get("zygote", "yes") != "no"

    async def sweep(self) -> None:
        """End what an earlier agent's left: what was forked from them lives on, for it needs them no more."""
        for folder in left_behind(self.folder):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                container = Container(Spec.load(str(folder)), self.launcher, lambda _: None)
                await container.adopt()
                await container.release()
        for path in self.folder.glob("*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)

    def warm_as_before(self) -> None:
        """Those that an earlier agent had last."""
        with contextlib.suppress(OSError, ValueError):
            for names in json.loads((self.folder / "last.json").read_text()):
                layers = [self.folder.parent / "layers" / name for name in names]
                if all(layer.is_dir() for layer in layers):
                    self.warm(layers)

    def warm(self, layers: list[Path]) -> None:
        """See to it that containers with these layers can soon be forked. Returns at once."""
        base, _ = forkable.split_layers(layers)
        key = _key(base)
        if not self.enabled or key in self._useless:
            return
        if why := forkable.why_base_not(base):
            self._useless[key] = why
            return
        if next(reversed(self._bases), "") != key:
            self._bases[key] = self._bases.pop(key, base)
            self._remember()
        if key not in self._lives:
            self._lives[key] = asyncio.create_task(self._live(key, base))
            self._lives[key].add_done_callback(say_failure)
            self._lives[key].add_done_callback(lambda _: self._lives.pop(key, None))
        for old in list(self._bases)[:-MOST]:
            del self._bases[old]
            if old in self._lives:
                self._lives[old].cancel()

    def socket_for(self, spec: Spec, layers: list[Path]) -> str:
        """Of the zygote that this container's process may be forked from, or nothing: then it is started by exec."""
        base, others = forkable.split_layers(layers)
        zygote = self.ready.get(_key(base))
        if zygote is None or forkable.why_not(zygote, spec.environment, others):
            return ""
        return zygote.socket

    async def leave(self) -> None:
        lives = list(self._lives.values())
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)

    async def _live(self, key: str, base: list[Path]) -> None:
        """One zygote after the other, until the task is cancelled or one fails before it is ready."""
        while True:
            began = time.monotonic()
            container = Container(self._spec(key, base), self.launcher, lambda _: None)
            try:
                await _shielded(container.launch())
                container.start()
                zygote = await self._facts(container)
                if zygote is None:
                    self._useless[key] = f"it ended while it imported the client: {_said(container.spec)}"
                    say(f"containers of {'+'.join(layer.name for layer in base)} are started without a zygote: {self._useless[key]}")
                    return
                self.ready[key] = zygote
                await container.over.wait()
            except (LaunchFailed, OSError) as error:
                self._useless[key] = str(error)
                say(f"containers are started without a zygote: {error}")
                return
            finally:
                self.ready.pop(key, None)
                with contextlib.suppress(LaunchFailed, OSError):
                    await _shielded(_remove(container))
            await asyncio.sleep(max(0.0, _AGAIN_SECONDS - (time.monotonic() - began)))

    async def _facts(self, container: Container) -> Zygote | None:
        """What it says when it has imported all; None when it ended instead."""
        asking = asyncio.create_task(_ask(container.spec.serves))
        over = asyncio.create_task(container.over.wait())
        try:
            await asyncio.wait({asking, over}, timeout=_IMPORT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            facts = asking.result() if asking.done() and not asking.exception() else None
        finally:
            asking.cancel()
            over.cancel()
        if facts is None:
            return None
        return Zygote(container.spec.serves, frozenset(facts["modules"]), frozenset(facts["looked"]), facts["environment"], facts["home"],
                      facts["threads"])

    def _spec(self, key: str, base: list[Path]) -> Spec:
        """The container's files, and the part of its environment that all containers share."""
        fleet, folder, name = self.fleet, self.folder / key, f"zygote-{key}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        (fleet.run / name).mkdir(mode=0o755, exist_ok=True)
        (fleet.run / f"{name}.sock").unlink(missing_ok=True)
        spec = Spec(
            assignment=0, rank=0, task_id="", task_secret="", folder=str(folder), control_socket=str(fleet.run / f"{name}.ctl"),
            api_folder=str(fleet.run / name), tasks_socket="", runtime=fleet.runtime, program=fleet.program, hostname="zygote",
            limits=Limits(shm_bytes=1 << 20), cgroup=f"phalanx-{hashlib.sha256(fleet.agent_id.encode()).hexdigest()[:8]}-{name}",
            rootless=fleet.rootless, single_user=fleet.single_user, boot_id=fleet.boot_id, command=[fleet.image.python],
            serves=str(fleet.run / f"{name}.sock"))
        if fleet.runtime == "process":
            home = folder / "root/root"
            home.mkdir(parents=True)
            spec.working_folder = str(home)
            search, path, inside = process_search(fleet, home, base), "", spec.api_folder
        else:
            hardware = gpus.Handover() if fleet.simulated else gpus.handover([card.minor for card in gpus.find_gpus().cards])
            spec.layers = [*(str(layer) for layer in reversed(base)), fleet.image.skeleton]
            spec.mounts = [*fleet.image.mounts, *hardware.mounts]
            search, path, inside = client_search(), fleet.image.path, INSIDE
            spec.environment |= fleet.loader
        spec.environment |= base_environment(inside, spec.working_folder, search, path)
        spec.save()
        return spec

    def _remember(self) -> None:
        write_whole(str(self.folder / "last.json"), json.dumps([[layer.name for layer in base] for base in self._bases.values()][-MOST:]))


async def _remove(container: Container) -> None:
    if container.phase != "preparing":
        await container.release()
    for path in (container.spec.folder, container.spec.api_folder):
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
    Path(container.spec.serves).unlink(missing_ok=True)


async def _shielded(work: Any) -> None:
    """Begun, it is finished: half a container would stay. A cancellation meanwhile comes afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def _ask(path: str) -> dict[str, Any]:
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(path, limit=1 << 22)
            break
        except (FileNotFoundError, ConnectionRefusedError):       # it is not started yet
            await asyncio.sleep(0.01)
    body = b'{"facts": true}'
    writer.write(struct.pack("<I", len(body)) + body)
    try:
        facts: dict[str, Any] = json.loads(await reader.readline())
    finally:
        writer.close()
    return facts


def _said(spec: Spec) -> str:
    """The last line of its output."""
    text = b"".join(record.data for record in spool.read(spec.spool, 0)).decode(errors="replace").strip()
    return text.splitlines()[-1] if text else "without a word"


def _key(base: list[Path]) -> str:
    return hashlib.sha256("\n".join(layer.name for layer in base).encode()).hexdigest()[:12]
