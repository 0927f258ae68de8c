"""May a container's process be forked from that zygote, so that the user's program can't tell it from one that was started?

Only when everything that an interpreter reads at its start, and the runner at its import, would be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .outfit import CLIENT_TREES

# Python looks for these at its start, wherever its path leads.
_AT_START = {"sitecustomize", "usercustomize"}
# Read by the loader, the C library, Python itself or OpenSSL, not through os.environ.
_BELOW_PYTHON = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "OPENSSL_", "SSL_", "LOCPATH", "GCONV_PATH", "NLSPATH")


@dataclass(frozen=True)
class Zygote:
    """What a zygote told of itself."""

    socket: str
    modules: frozenset[str]             # first parts of the names of all modules that it has
    looked: frozenset[str]              # names in the environment that its imports looked at
    environment: dict[str, str]
    home: str
    threads: int


def split_layers(layers: list[Path]) -> tuple[list[Path], list[Path]]:
    """The layers that bring the client and what it needs, which a zygote is made from, and the others; lowest first."""
    base = [layer for layer in layers if any((layer / name).exists() for name in CLIENT_TREES)]
    return base, [layer for layer in layers if layer not in base]


def why_base_not(base: list[Path]) -> str:
    """Why no zygote can be made from these layers; empty when it can."""
    if not base:
        return "no layer brings the client's package"
    for layer in base:
        if others := {entry.name for entry in layer.iterdir()} - CLIENT_TREES.keys():
            return f"layer {layer.name} brings the client's package and also /{sorted(others)[0]}"
    return ""


def why_not(zygote: Zygote, environment: dict[str, str], others: list[Path]) -> str:
    """Why the container must be started and not forked; empty when it may be forked. `others`: its layers that the zygote has not."""
    if zygote.threads != 1:
        return f"its zygote has {zygote.threads} threads, and a fork would lose all but one"
    for layer in others:
        if why := _hides(layer, zygote.modules):
            return why
    home = environment.get("HOME", "")

    def there(name: str) -> str | None:
        value = zygote.environment.get(name)
        return value.replace(zygote.home, home) if value is not None and name in ("HOME", "PYTHONPATH") else value

    names = {name for name in {*environment, *zygote.environment} if name.startswith(_BELOW_PYTHON)} | zygote.looked
    if "*" in names:
        return "the client reads its whole environment when it is imported"
    for name in sorted(names):
        if environment.get(name) != there(name):
            return f"{name} is {environment.get(name)!r}, and the zygote was started with {there(name)!r}"
    return ""


def _hides(layer: Path, modules: frozenset[str]) -> str:
    """Only files of the home folder may be new to it, and none that an import at the start would have found."""
    for entry in layer.iterdir():
        if entry.name != "root":
            return f"layer {layer.name} brings files to /{entry.name}"
    for entry in (layer / "root").iterdir():
        name = entry.name.partition(".")[0]
        if entry.name.startswith("."):
            return f"layer {layer.name} brings /root/{entry.name}, which may be settings that are read at import"
        if name in modules or name in _AT_START:
            return f"layer {layer.name} brings /root/{entry.name}, which hides the module {name} that the zygote has imported"
    return ""
