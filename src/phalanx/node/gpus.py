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


@dataclass(frozen=True)
class Gpus:
    type: str = ""
    count: int = 0


@dataclass
class Handover:
    """What a container is given: device nodes, read-only files, and the environment that finds them."""

    devices: list[str] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def find_gpus() -> Gpus:
    """Type and number by the kernel driver's own files; none when there is no driver."""
    folders = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    devices = [path for path in glob.glob("/dev/nvidia*") if re.fullmatch(r"/dev/nvidia\d+", path)]
    if not folders or not devices:
        return Gpus()
    model = next((line.partition(":")[2].strip() for line in folders[0].read_text().splitlines() if line.startswith("Model:")), "")
    return Gpus(gpu_type(model), min(len(folders), len(devices)))


def gpu_type(model: str) -> str:
    """The client's name for a driver's model name: "NVIDIA A100-SXM4-80GB" is A100-80GB."""
    upper = model.upper()
    for needle, name in _NAMES:
        if re.search(rf"\b{re.escape(needle)}\b", upper):
            if name == "A100":
                return "A100-80GB" if "80GB" in upper else "A100-40GB"
            return name
    return re.sub(r"^NVIDIA ", "", model).strip().replace(" ", "-") or "any"


def handover(count: int) -> Handover:
    """All of a whole node's GPUs; the machine's CDI file decides where there is one."""
    if count == 0:
        return Handover()
    return _from_cdi() or _from_files()


def _from_cdi() -> Handover | None:
    """The JSON form of nvidia-ctk's file; the YAML one is read by nobody in our dependencies, and device nodes serve then."""
    for path in sorted([*Path("/etc/cdi").glob("nvidia*.json"), *Path("/var/run/cdi").glob("nvidia*.json")]):
        try:
            described = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        result = Handover()
        everything = next((device for device in described.get("devices", ()) if device.get("name") == "all"), None)
        if described.get("kind") != "nvidia.com/gpu" or everything is None:
            continue
        for edits in (described.get("containerEdits", {}), everything.get("containerEdits", {})):
            result.devices += [node.get("hostPath", node["path"]) for node in edits.get("deviceNodes", ())]
            result.mounts += [Mount(mount["hostPath"], mount["containerPath"]) for mount in edits.get("mounts", ())]
            result.environment |= dict(entry.split("=", 1) for entry in edits.get("env", ()))
        return result
    return None


def _from_files() -> Handover:
    devices = [path for path in sorted(glob.glob("/dev/nvidia*")) if _is_device(path)]
    devices += [path for path in sorted(glob.glob("/dev/nvidia-caps/*")) if _is_device(path)]
    devices += [path for path in sorted(glob.glob("/dev/infiniband/*")) if _is_device(path)]
    mounts = []
    for library in _driver_files():
        mounts.append(Mount(os.path.realpath(library), f"{LIBRARY_FOLDER}/{os.path.basename(library)}"))
    for tool in ("nvidia-smi", "nvidia-debugdump"):
        found = programs.find(tool)
        if found and not found.startswith("/usr/"):      # those below /usr are there anyway
            mounts.append(Mount(os.path.realpath(found), f"{TOOL_FOLDER}/{tool}"))
    return Handover(devices, mounts, {"LD_LIBRARY_PATH": LIBRARY_FOLDER})


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
