"""Layers: sets of files that agents lay over the default image, by content-derived id. A mount is one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from phalanx.model.app import Mount
from phalanx.model.refusal import invalid, not_found

if TYPE_CHECKING:
    from phalanx.server.server import Server

_PLAIN, _RUNNABLE = 0o644, 0o755


@dataclass(frozen=True)
class LayerFile:
    """One file of a layer, at its path in the container."""

    path: str
    mode: int
    source: Path

    def open(self) -> BinaryIO:
        return open(self.source, "rb")


def layer_files(server: Server, layer_id: str) -> Iterator[LayerFile]:
    """A layer's files in path order. A refusal when there is no such layer."""
    mount = server.world[Mount].get(layer_id)
    if mount is None:
        raise not_found("Layer", layer_id)
    return _of_folder(Path(mount.folder)) if mount.folder else _of_files(server, mount)


def mount_id_of(files: dict[str, list[object]]) -> str:
    """The id of a set of files: the same files have the same id, whoever sends them and in whichever order."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path}\0{files[path][0]}\0{files[path][1]}\n".encode())
    return f"mo-{digest.hexdigest()[:22]}"


def checked_path(filename: str) -> str:
    """A path in a container, absolute and without a way out of it."""
    parts = [part for part in filename.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in filename or not parts:
        raise invalid(f"a mount has a file '{filename}': its path in the container must be absolute, without '..'")
    return "/" + "/".join(parts)


def _of_files(server: Server, mount: Mount) -> Iterator[LayerFile]:
    for path in sorted(mount.files):
        sha256, mode = mount.files[path]
        yield LayerFile(path, int(str(mode)) or _PLAIN, server.blobs.path(str(sha256)))


def _of_folder(folder: Path) -> Iterator[LayerFile]:
    for source in sorted(path for path in folder.rglob("*") if path.is_file()):
        mode = _RUNNABLE if os.access(source, os.X_OK) else _PLAIN
        yield LayerFile("/" + str(source.relative_to(folder)), mode, source)
