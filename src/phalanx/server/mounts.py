"""Mounts: sets of files that a client sends, and the global ones that the server brings itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from phalanx.model.app import Mount
from phalanx.model.refusal import Refusal, RefusalKind, invalid, not_found
from phalanx.server.clients import OWN_PYTHON, ClientPackage
from phalanx.server.layers import checked_path, mount_id_of
from phalanx.server.unit import Unit

if TYPE_CHECKING:
    from phalanx.server.server import Server

_CLIENT_MOUNT = re.compile(r"modal-client-mount-(.+)")
_PLAIN = 0o644
RENEWED_MS = 3_600_000


class Mounts:
    """The noun `server.mounts`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._mounts: dict[str, Mount] = server.world[Mount]

    def missing(self, hashes: list[str]) -> list[str]:
        """Which of these contents the server does not have."""
        return [sha256 for sha256 in hashes if not self._server.blobs.asked(sha256)]

    def create(self, unit: Unit, files: list[tuple[str, str, int]]) -> Mount:
        """(path, sha256, mode) of each file. Its content must be here already."""
        table: dict[str, list[object]] = {checked_path(path): [sha256, mode or _PLAIN] for path, sha256, mode in files}
        absent = [path for path, (sha256, _) in table.items() if not self._server.blobs.asked(str(sha256))]
        if absent:
            raise invalid(f"a mount names files whose content was not uploaded: {', '.join(absent[:5])}. Run the command again")
        mount_id = mount_id_of(table)
        if mount_id not in self._mounts:
            unit.put(Mount(mount_id, checksum=mount_id.removeprefix("mo-"), files=table, created_ms=self._server.now_ms()))
        elif self._mounts[mount_id].created_ms < self._server.now_ms() - RENEWED_MS:    # named again: not to be removed as old
            self._mounts[mount_id].created_ms = self._server.now_ms()
            unit.put(self._mounts[mount_id])
        return self._mounts[mount_id]

    async def client_package(self, name: str) -> ClientPackage:
        """The client package behind a global mount's name, made when it is first asked for."""
        match = _CLIENT_MOUNT.fullmatch(name)
        if match is None:
            raise Refusal(
                RefusalKind.UNIMPLEMENTED,
                f"the global mount '{name}' is for building an image (add_python=…): this Phalanx server can't build images yet; "
                "use modal.Image.debian_slim(), which is served from the nodes' own Python",
            )
        return await self._server.clients.get(match.group(1))

    def client_mount(self, unit: Unit, package: ClientPackage) -> Mount:
        """The mount of a client package; its dependencies' layer is made with it."""
        self._layer(unit, deps_layer_id(package), f"modal-deps-{package.version}", str(package.deps), package.digest)
        return self._layer(unit, client_layer_id(package), f"modal-client-mount-{package.version}", str(package.client), package.digest)

    def client_stands(self, version: str, python_version: str) -> bool:
        """Is the client here, where its layers say? Not after a restore, nor when the server's own environment was upgraded."""
        package = self._server.clients.known(version, python_version or OWN_PYTHON)
        mount = self._mounts.get(client_layer_id(package)) if package is not None else None
        return package is not None and mount is not None and mount.folder == str(package.client)

    async def make_client(self, version: str, python_version: str) -> None:
        """Make it and its layers. A refusal says why that can't be."""
        package = await self._server.clients.get(version, python_version or OWN_PYTHON)
        await self._server.act(lambda unit: self.client_mount(unit, package))

    def client_layers(self, version: str, python_version: str) -> list[str]:
        """The layers of a client for a Python, lowest first. Both stand since its client mount was asked for."""
        package = self._server.clients.known(version, python_version or OWN_PYTHON)
        if package is None or client_layer_id(package) not in self._mounts:
            raise not_found("Client package", f"modal {version} for Python {python_version or OWN_PYTHON}", "run or deploy the app again")
        return [deps_layer_id(package), client_layer_id(package)]

    def _layer(self, unit: Unit, layer_id: str, name: str, folder: str, digest: str) -> Mount:
        known = self._mounts.get(layer_id)
        if known is None or known.folder != folder:
            unit.put(Mount(layer_id, name=name, checksum=digest, folder=folder, created_ms=self._server.now_ms()))
        return self._mounts[layer_id]


def client_layer_id(package: ClientPackage) -> str:
    return f"mo-client-{package.digest[:22]}"


def deps_layer_id(package: ClientPackage) -> str:
    return f"mo-deps-{package.digest[:22]}"
