"""The client's own package, as containers need it: a folder tree per modal version and Python minor, made once.

`/pkg` gets the packages that are the client's mount, `/__modal/deps` what they import (newer image builders expect the
server to bring that, and never ask for it: reference, protocol.md, Images and mounts). The server's own version comes from
its own environment, so nothing is downloaded; another one is installed by pip when it is first asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import json
import marshal
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx.model.refusal import Refusal, RefusalKind, invalid

OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CLIENT_PACKAGES = ("modal", "modal_proto", "modal_version", "synchronicity")
_LEFT_OUT = frozenset({"modal_docs", "bin", "__pycache__"})
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_VERSION = re.compile(r"\d+\.\d+\.\d+[a-z0-9.]*")
LAYOUT = 1      # counted up when the tree's form changes
# Before 1.0 the client computes an upload's MD5 in Payload.write, which aiohttp calls write_with_length since 3.12: every upload
# fails with "Local data and remote data checksum mismatch" (seen with 0.73.173 and aiohttp 3.14).
_OLD_CLIENTS_WANT = "aiohttp<3.12"

SITECUSTOMIZE = '''"""Lets the runner find its own dependencies behind everything the image has."""
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__modal", "deps"))
'''


@dataclass(frozen=True)
class ClientPackage:
    """Two trees that look like the root of a container, and what their content is named by."""

    version: str
    python_version: str
    client: Path        # /pkg/modal, ...
    deps: Path          # /__modal/deps/**, /pkg/sitecustomize.py
    digest: str


class Clients:
    """The noun `server.clients`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packages: dict[tuple[str, str], ClientPackage] = {}
        self._making: dict[tuple[str, str], asyncio.Lock] = {}

    def known(self, version: str, python_version: str = OWN_PYTHON) -> ClientPackage | None:
        """The package if it was made already, by this server or an earlier one."""
        key = (version, python_version)
        if key not in self._packages:
            made = self._read(self._place(version, python_version))
            if made is not None:
                self._packages[key] = made
        return self._packages.get(key)

    async def get(self, version: str, python_version: str = OWN_PYTHON) -> ClientPackage:
        """The package, made now if it is not there yet: seconds for another version than the server's own."""
        if not _VERSION.fullmatch(version):
            raise invalid(f"'{version}' is not a version of the modal client; it looks like 1.6.4")
        known = self.known(version, python_version)
        if known is not None:
            return known
        lock = self._making.setdefault((version, python_version), asyncio.Lock())
        async with lock:
            if self.known(version, python_version) is None:
                await asyncio.to_thread(self._make, version, python_version)
        made = self.known(version, python_version)
        assert made is not None
        return made

    def _place(self, version: str, python_version: str) -> Path:
        name = f"{version}-py{python_version}"
        if _is_own(version, python_version):
            name += f"-{_own_digest()[:12]}"    # the server's environment may be upgraded under its state
        return self._folder / name

    def _read(self, place: Path) -> ClientPackage | None:
        try:
            facts = json.loads((place / "package.json").read_text())
        except FileNotFoundError:
            return None
        return ClientPackage(facts["version"], facts["python"], place / "client", place / "deps", facts["digest"])

    def _make(self, version: str, python_version: str) -> None:
        """Build the trees aside, then rename: a half-made one is never seen."""
        place = self._place(version, python_version)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".new-") as aside:
            draft = Path(aside) / "package"
            if _is_own(version, python_version):
                for source, relative in _own_files():
                    _ship(source, draft / _tree_of(relative), OWN_PYTHON)
            else:
                installed = Path(aside) / "installed"
                _install(version, python_version, installed)
                for source, relative in _installed_files(installed):
                    _ship(source, draft / _tree_of(relative), python_version)
            (draft / "deps/pkg").mkdir(parents=True, exist_ok=True)
            (draft / "deps/pkg/sitecustomize.py").write_text(SITECUSTOMIZE)
            digest = hashlib.sha256(f"{place.name} {LAYOUT} {_tree_digest(draft)}".encode()).hexdigest()
            (draft / "package.json").write_text(json.dumps({"version": version, "python": python_version, "digest": digest}))
            shutil.rmtree(place, ignore_errors=True)
            os.replace(draft, place)


def _is_own(version: str, python_version: str) -> bool:
    return version == importlib.metadata.version("modal") and python_version == OWN_PYTHON


def _own_digest() -> str:
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in _own_closure()]
    return hashlib.sha256(f"{LAYOUT} {' '.join(versions)}".encode()).hexdigest()


def _own_closure() -> list[str]:
    """The client and everything it requires that is installed here. Requirements for extras don't count; a marker that does not
    hold here names what is not installed, or costs a few files too many."""
    found: set[str] = set()
    wanted = ["modal"]
    while wanted:
        name = wanted.pop()
        normal = re.sub(r"[-_.]+", "-", name).lower()
        if normal in found:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(normal)
        for requirement in requirements:
            match = _NAME.match(requirement)
            if match and "extra ==" not in requirement:
                wanted.append(match.group())
    return sorted(found)


def _own_files() -> Iterator[tuple[Path, Path]]:
    """(file, its path below site-packages) of the client and all it needs."""
    for name in _own_closure():
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or []:
            relative = Path(str(file))
            if _is_shipped(relative):
                yield Path(str(distribution.locate_file(file))), relative


def _installed_files(installed: Path) -> Iterator[tuple[Path, Path]]:
    for path in sorted(installed.rglob("*")):
        relative = path.relative_to(installed)
        if path.is_file() and _is_shipped(relative):
            yield path, relative


def _is_shipped(relative: Path) -> bool:
    return ".." not in relative.parts and _LEFT_OUT.isdisjoint(relative.parts) and relative.suffix not in (".pyc", ".pyi")


def _tree_of(relative: Path) -> Path:
    if relative.parts[0] in CLIENT_PACKAGES:
        return Path("client/pkg") / relative
    return Path("deps/__modal/deps") / relative


def _ship(source: Path, target: Path, python_version: str) -> None:
    """Copy a file, and for Python source its compiled form beside it, as one that is never checked against the source's time:
    copies have other times (import of the runner 0.38 s with, 1.18 s without: reference, protocol.md)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if source.suffix != ".py" or python_version != OWN_PYTHON:
        return
    code = _compiled(source)
    if code is None:
        return
    cache = Path(importlib.util.cache_from_source(str(target)))
    cache.parent.mkdir(exist_ok=True)
    unchecked_hash = (0b01).to_bytes(4, "little")
    cache.write_bytes(importlib.util.MAGIC_NUMBER + unchecked_hash + importlib.util.source_hash(source.read_bytes()) + code)


def _compiled(source: Path) -> bytes | None:
    """The marshalled code of a file: what pip compiled if that is fresh, for compiling all again takes seconds."""
    stat = source.stat()
    when_and_size = b"".join((int(number) & 0xFFFFFFFF).to_bytes(4, "little") for number in (stat.st_mtime, stat.st_size))
    fresh = importlib.util.MAGIC_NUMBER + bytes(4) + when_and_size
    try:
        cached = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    except OSError:
        cached = b""
    if cached.startswith(fresh):
        return cached[len(fresh) :]
    try:
        return marshal.dumps(compile(source.read_bytes(), str(source), "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return None     # a template that only looks like Python


def _tree_digest(tree: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path.relative_to(tree)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _install(version: str, python_version: str, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--target", str(target)]
    if python_version != OWN_PYTHON:
        command += ["--python-version", python_version, "--only-binary", ":all:"]
    command += [f"modal=={version}", *([_OLD_CLIENTS_WANT] if version.startswith("0.") else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return
    why = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "pip said nothing")
    raise Refusal(
        RefusalKind.CONFLICT,
        f"modal {version} for Python {python_version} could not be installed on the Phalanx server, and containers need it: {why.strip()} "
        f"Use the client that came with the server (modal {importlib.metadata.version('modal')}), or give the server a package index",
    )
