"""The machine's NVIDIA GPUs and what a container needs of them: device nodes and the driver's user-space files."""

from __future__ import annotations

import ctypes
import glob
import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import programs
from .spec import Mount

# The client's spellings, most special first; the driver says "NVIDIA H100 80GB HBM3".
_NAMES = [
    ("GB200", "GB200"), ("GB300", "GB300"), ("B300", "B300"), ("B200", "B200"), ("H200", "H200"), ("H100", "H100"), ("A100", "A100"),
    ("L40S", "L40S"), ("RTX PRO 6000", "RTX-PRO-6000"), ("A10G", "A10G"), ("A10", "A10"), ("L4", "L4"), ("T4", "T4"),
]
_DRIVER_LIBRARIES = [
    "libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libnvidia-cfg.so", "libcudadebugger.so",
    "libnvidia-gpucomp.so", "libnvidia-opencl.so", "libnvcuvid.so", "libnvidia-encode.so", "libnvoptix.so",
]
# Not below /usr, which is the machine's own and read-only: a file that is not there can't be mounted there.
LIBRARY_FOLDER, TOOL_FOLDER = "/opt/nvidia/lib64", "/opt/nvidia/bin"
_CARD_NODE = re.compile(r"/dev/nvidia\d+")


@dataclass(frozen=True)
class Card:
    """One GPU, as the kernel driver has it: /dev/nvidia<minor>."""

    minor: int
    model: str = ""       # "NVIDIA H200"
    uuid: str = ""


@dataclass(frozen=True)
class Gpus:
    type: str = ""
    cards: tuple[Card, ...] = ()

    @property
    def count(self) -> int:
        return len(self.cards)


@dataclass
class Handover:
    """What a container is given: device nodes, read-only files, and the environment that finds them."""

    devices: list[str] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def find_gpus() -> Gpus:
    """Type and cards by the kernel driver's own files; none when there is no driver. A card without a device node does not count."""
    described = [read_card(path.read_text()) for path in Path("/proc/driver/nvidia/gpus").glob("*/information")]
    cards = sorted((card for card in described if card is not None and os.path.exists(f"/dev/nvidia{card.minor}")), key=lambda c: c.minor)
    return Gpus(gpu_type(cards[0].model), tuple(cards)) if cards else Gpus()


def read_card(information: str) -> Card | None:
    """From the text of /proc/driver/nvidia/gpus/<bus>/information; None for a card that the driver has not taken."""
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in information.splitlines())}
    if not values.get("Device Minor", "").isdecimal():
        return None
    return Card(int(values["Device Minor"]), values.get("Model", ""), values.get("GPU UUID", ""))


def gpu_type(model: str) -> str:
    """The client's name for a driver's model name: "NVIDIA A100-SXM4-80GB" is A100-80GB."""
    upper = model.upper()
    for needle, name in _NAMES:
        if re.search(rf"\b{re.escape(needle)}\b", upper):
            if name == "A100":
                return "A100-80GB" if "80GB" in upper else "A100-40GB"
            return name
    return re.sub(r"^NVIDIA ", "", model).strip().replace(" ", "-") or "any"


class DeviceGone(OSError):
    """A card that was there when the agent started has no device node any more; the text names them."""


def handover(minors: list[int]) -> Handover:
    """What a container with these cards gets; the machine's CDI file decides where there is one. Raises DeviceGone."""
    if not minors:
        return Handover()
    if gone := [f"/dev/nvidia{minor}" for minor in minors if not os.path.exists(f"/dev/nvidia{minor}")]:
        raise DeviceGone(f"{', '.join(gone)}: no such device any more. `nvidia-smi -L` on the node says which cards its driver still has")
    return _from_cdi(minors) or _from_files(minors)


def loader_environment() -> dict[str, str]:
    """What a handover of this machine's cards tells the loader, which reads it once, at a process's start. So a zygote has it, and
    containers without cards too, where it names a folder that is not there: all of them can then be forked from the one zygote."""
    environment = handover([card.minor for card in find_gpus().cards]).environment
    return {name: value for name, value in environment.items() if name.startswith("LD_")}


def _from_cdi(minors: list[int]) -> Handover | None:
    """The JSON form of nvidia-ctk's file; the YAML one is read by nobody in our dependencies, and device nodes serve then."""
    for path in sorted([*Path("/etc/cdi").glob("nvidia*.json"), *Path("/var/run/cdi").glob("nvidia*.json")]):
        try:
            described = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if described.get("kind") == "nvidia.com/gpu" and (result := read_cdi(described, minors)):
            return result
    return None


def read_cdi(described: dict[str, Any], minors: list[int]) -> Handover | None:
    """A CDI file's edits for these cards; None when it does not know one of them. Its names for them count otherwise than minors do."""
    edits = [described.get("containerEdits", {})]
    for minor in minors:
        of_card = [device["containerEdits"] for device in described.get("devices", ())
                   if _cards_of(device) == [f"/dev/nvidia{minor}"]]      # by index and by UUID it has two; all has several cards
        if not of_card:
            return None
        edits.append(of_card[0])
    result = Handover()
    for edit in edits:
        paths = [node.get("hostPath", node["path"]) for node in edit.get("deviceNodes", ())]
        result.devices += [path for path in paths if path not in result.devices]
        mounts = [Mount(mount["hostPath"], mount["containerPath"]) for mount in edit.get("mounts", ())]
        result.mounts += [mount for mount in mounts if mount not in result.mounts]
        result.environment |= dict(entry.split("=", 1) for entry in edit.get("env", ()))
    return result


def _cards_of(device: dict[str, Any]) -> list[str]:
    paths = [node["path"] for node in device.get("containerEdits", {}).get("deviceNodes", ())]
    return [path for path in paths if _CARD_NODE.fullmatch(path)]


def _from_files(minors: list[int]) -> Handover:
    """Not /dev/nvidia-caps: nvidia-cap1 is the right to divide the cards (MIG), which is the machine owner's."""
    own = {f"/dev/nvidia{minor}" for minor in minors}
    found = [path for path in sorted(glob.glob("/dev/nvidia*")) if path in own or not _CARD_NODE.fullmatch(path)]
    devices = [path for path in [*found, *sorted(glob.glob("/dev/infiniband/*"))] if _is_device(path)]
    libraries = _driver_files()
    mounts = [Mount(os.path.realpath(library), f"{LIBRARY_FOLDER}/{os.path.basename(library)}") for library in libraries]
    for tool in ("nvidia-smi", "nvidia-debugdump"):
        found_tool = programs.find(tool) or _beside(libraries, tool)
        if found_tool:
            mounts.append(Mount(os.path.realpath(found_tool), f"{TOOL_FOLDER}/{tool}"))
    return Handover(devices, mounts, {"LD_LIBRARY_PATH": LIBRARY_FOLDER})


def _beside(libraries: list[str], tool: str) -> str:
    """A driver in a folder of its own has bin next to lib64, and nobody's PATH has it."""
    for folder in dict.fromkeys(os.path.dirname(library) for library in libraries):
        path = os.path.join(os.path.dirname(folder), "bin", tool)
        if os.access(path, os.X_OK):
            return path
    return ""


def driver_library(soname: str) -> ctypes.CDLL:
    """Load one of the driver's libraries, also where the loader does not know its folder. Raises OSError."""
    try:
        return ctypes.CDLL(soname)
    except OSError:
        path = next((path for path in _driver_files() if os.path.basename(path) == soname), None)
        if path is None:
            raise
        return ctypes.CDLL(path)


def _driver_files() -> list[str]:
    """The driver's libraries by their sonames, wherever the loader, LD_LIBRARY_PATH or the usual folders have them."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    loaded = _folder_of_loaded("libcuda.so.1")
    folders += [loaded] if loaded else []
    folders += ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib"]
    found: dict[str, str] = {}
    for folder in folders:
        for library in _DRIVER_LIBRARIES:
            for path in glob.glob(f"{glob.escape(folder)}/{library}*"):
                found.setdefault(os.path.basename(path), path)
    return [found[name] for name in sorted(found)]


def _folder_of_loaded(library: str) -> str:
    """Where the loader finds it: load it, and look at our own memory map."""
    try:
        ctypes.CDLL(library)
        with open("/proc/self/maps") as file:
            for line in file:
                if "/libcuda.so" in line:
                    return os.path.dirname(line.split()[-1])
    except OSError:
        pass
    return ""


def _is_device(path: str) -> bool:
    return stat.S_ISCHR(os.stat(path).st_mode)
