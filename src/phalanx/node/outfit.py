"""From a Prepare to a Spec: the container's files, environment, mounts, names and limits. Writes into the container's folder only."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.protocol import agent_pb2

from . import gpus
from .image import DefaultImage, resolv_conf
from .spec import Limits, Mount, Network, Spec

_MIB = 1 << 20
_SOFT_CPU_MILLI = 16_000     # what a container may use above its request, where nothing else is said
_PIDS = 32_768
# Shares only mean something next to others'. With the usual 1024 a core, a container of the default 0.125 core had an eighth of the weight
# of any plain process beside it: importing the runner took 6 s instead of 1 on a busy machine. So it weighs as much as one.
_SHARES_PER_CORE = 8192
# Top folders that bring the client and what it needs → where its packages lie in them.
CLIENT_TREES = {"pkg": "pkg", "__modal": "__modal/deps"}
INSIDE = "/run/phalanx"      # the API socket and the arguments, in the container
# For blobs, whose URLs are TCP ones. Out of the way: not 127.0.0.1, and above the ports that the kernel hands out.
_HTTP_HOST, _HTTP_PORT = "127.127.0.1", 61899


@dataclass(frozen=True)
class Addresses:
    """What the agent chose for one container; `network` is None for plain processes."""

    ipv4: str
    ipv6: str
    network: Network | None = None


@dataclass(frozen=True)
class Fleet:
    """What all containers of this agent share."""

    agent_id: str
    runtime: str
    program: str
    rootless: bool
    single_user: bool
    containers: Path       # folder of their folders
    run: Path              # folder of their sockets
    tasks_socket: Path
    image: DefaultImage
    boot_id: str
    simulated: bool = True  # no real GPUs here
    loader: dict[str, str] = field(default_factory=dict)     # what it reads at a start, in all containers: one zygote serves all
    extra: dict[str, str] = field(default_factory=dict)


def outfit(
    ask: agent_pb2.Prepare, fleet: Fleet, layers: list[Path], addresses: Addresses, cards: list[gpus.Card], node_memory_mib: int,
    zygote_for: Callable[[Spec, list[Path]], str] = lambda spec, layers: "",
) -> Spec:
    """Write the container's folder and answer its spec. `layers` are folders, lowest first; `cards` are its own real GPUs;
    `zygote_for` answers the socket of a zygote that the runner may be forked from."""
    name = f"{ask.assignment}-{ask.rank}"
    folder = fleet.containers / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    api = fleet.run / name
    api.mkdir(parents=True, mode=0o755, exist_ok=True)
    (api / "arguments").write_bytes(ask.container_arguments)
    memory = (ask.memory_limit_mib or node_memory_mib) * _MIB
    spec = Spec(
        assignment=ask.assignment, rank=ask.rank, task_id=ask.task_id, task_secret=ask.task_secret,
        folder=str(folder), control_socket=str(fleet.run / f"{name}.ctl"), api_folder=str(api), tasks_socket=str(fleet.tasks_socket),
        runtime=fleet.runtime, program=fleet.program, hostname=host_name(ask.function_name, ask.assignment, ask.rank),
        limits=_limits(ask, memory), cgroup=f"{names_begin(fleet.agent_id)}{name}", rootless=fleet.rootless,
        single_user=fleet.single_user, node_id=ask.node_id, network=addresses.network,
        ipv4=addresses.ipv4, ipv6=addresses.ipv6, boot_id=fleet.boot_id, size=ask.size, grace_ms=ask.grace_ms,
        cards=[card.minor for card in cards])
    if fleet.runtime == "process":
        _dress_process(spec, ask, fleet, layers, cards)
    else:
        _dress_container(spec, ask, fleet, layers)
    if not ask.command:
        spec.zygote = zygote_for(spec, layers)
    spec.save()
    return spec


def names_begin(agent_id: str) -> str:
    """How the names of all containers of an agent begin, where they are the machine's: cgroups, marks of processes."""
    return f"phalanx-{_short(agent_id)}-"


def host_name(function: str, assignment: int, rank: int) -> str:
    """At most 63 characters of a-z, 0-9 and -, unique for each rank of each assignment; the full function name is a label elsewhere."""
    plain = unicodedata.normalize("NFKD", function).encode("ascii", "ignore").decode().lower()
    plain = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:36].strip("-")
    if not plain:
        plain = "f" + hashlib.sha256(function.encode()).hexdigest()[:8]
    return f"{plain}-{assignment}-{rank}"


def _limits(ask: agent_pb2.Prepare, memory: int) -> Limits:
    cpu = ask.cpu_limit_milli or ask.cpu_milli + _SOFT_CPU_MILLI
    return Limits(
        memory_bytes=memory,
        cpu_quota_us=cpu * 100,                                  # of a period of 100 ms
        cpu_shares=min(262_144, max(2, ask.cpu_milli * _SHARES_PER_CORE // 1000)),
        pids=_PIDS,
        shm_bytes=memory // 2,
    )


def _dress_container(spec: Spec, ask: agent_pb2.Prepare, fleet: Fleet, layers: list[Path]) -> None:
    image = fleet.image
    spec.layers = [*(str(layer) for layer in reversed(layers)), image.skeleton]
    spec.mounts = [_with_layers(mount, layers) for mount in image.mounts]
    hardware = gpus.handover(spec.cards)
    spec.devices = hardware.devices
    spec.mounts += hardware.mounts
    etc = Path(spec.folder) / "writes/upper/etc"
    etc.mkdir(parents=True, mode=0o755)
    (etc / "hostname").write_text(spec.hostname + "\n")
    (etc / "hosts").write_text(hosts(spec.hostname, spec.ipv4, spec.ipv6))
    (etc / "resolv.conf").write_text("" if ask.block_network else resolv_conf())
    spec.http_address = f"{_HTTP_HOST}:{_HTTP_PORT}"
    spec.command = list(ask.command) or [image.python, "-u", "-m", "modal._container_entrypoint"]
    spec.environment = _environment(ask, INSIDE, "/root", client_search(), image.path) | fleet.loader | hardware.environment
    if hardware.devices:
        spec.environment["PATH"] += f":{gpus.TOOL_FOLDER}"
    _add(spec.environment, ask.environment)
    if hardware.environment.get("LD_LIBRARY_PATH") and "LD_LIBRARY_PATH" in ask.environment:
        spec.environment["LD_LIBRARY_PATH"] = f"{ask.environment['LD_LIBRARY_PATH']}:{hardware.environment['LD_LIBRARY_PATH']}"


def _dress_process(spec: Spec, ask: agent_pb2.Prepare, fleet: Fleet, layers: list[Path], cards: list[gpus.Card]) -> None:
    """The layers' tree in a folder of its own; the runner started by a line that teaches the resolver `i6pn.modal.local`."""
    root = Path(spec.folder) / "root"
    for name in ("root", "tmp"):
        (root / name).mkdir(parents=True)
    apart = not _overlap(layers)
    for layer in layers:
        _lay(layer, root, CLIENT_TREES if apart else ())
    command = list(ask.command) or [fleet.image.python, "-u", "-m", "modal._container_entrypoint"]
    spec.command = _with_resolver(command)
    spec.working_folder = str(root / "root")
    spec.http_address = f"{spec.ipv4}:{_HTTP_PORT}"
    search = process_search(fleet, root / "root", layers)
    path = f"{os.path.dirname(fleet.image.python)}:{os.environ.get('PATH', '')}"
    spec.environment = _environment(ask, spec.api_folder, spec.working_folder, search, path)
    spec.environment["TMPDIR"] = str(root / "tmp")
    if not fleet.simulated:      # nothing else keeps a plain process off the other cards
        spec.environment["CUDA_VISIBLE_DEVICES"] = ",".join(card.uuid for card in cards)
    _add(spec.environment, ask.environment)


def hosts(name: str, ipv4: str, ipv6: str) -> str:
    """The rank's own name leads to its own addresses, never to loopback: gloo binds what its host name resolves to."""
    return (
        f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{ipv6} {name}\n{ipv4} {name}\n{ipv6} i6pn.modal.local\n"
    )


def client_search() -> list[str]:
    """Where a container's Python finds modules, before its own folders."""
    return ["/root", *(f"/{tree}" for tree in CLIENT_TREES.values())]


def process_search(fleet: Fleet, home: Path, layers: list[Path]) -> list[str]:
    """The same for a plain process: the client's packages are used where the layers lie, unless two layers have parts of one package."""
    own = [home.parent / place for place in CLIENT_TREES.values()]
    shared = [] if _overlap(layers) else [layer / place for place in CLIENT_TREES.values() for layer in reversed(layers)]
    search = [str(home), *map(str, [tree for tree in shared if tree.is_dir()] or own)]
    if os.path.isabs(shown := fleet.extra.get("image.site_packages", "")):
        search.append(shown)
    return search


def _overlap(layers: list[Path]) -> bool:
    trees = [layer / place for layer in layers for place in CLIENT_TREES.values() if (layer / place).is_dir()]
    names = [entry.name for tree in trees for entry in tree.iterdir() if entry.name != "__pycache__"]
    return len(names) > len(set(names))


def _environment(ask: agent_pb2.Prepare, inside: str, home: str, search: list[str], path: str) -> dict[str, str]:
    return base_environment(inside, home, search, path) | {"MODAL_TASK_ID": ask.task_id}


def base_environment(inside: str, home: str, search: list[str], path: str) -> dict[str, str]:
    """What all containers have; `inside` is the folder of the API socket and the arguments."""
    return {
        "PATH": path,
        "HOME": home,
        "LANG": "C.UTF-8",
        "PYTHONPATH": ":".join(search),
        "PYTHONUNBUFFERED": "1",
        "MODAL_IS_REMOTE": "1",
        "MODAL_SERVER_URL": f"unix://{inside}/api.sock",
        "MODAL_CONTAINER_ARGUMENTS_PATH": f"{inside}/arguments",
        "MODAL_DISABLE_API_PROXY": "1",
        "MODAL_CLOUD_PROVIDER": "CLOUD_PROVIDER_UNSPECIFIED",
        "MODAL_REGION": "local",
    }


def _add(environment: dict[str, str], asked: Mapping[str, str]) -> None:
    """The function's own variables win, but for the runner's way to its packages: those of the function come behind."""
    search = environment["PYTHONPATH"]
    environment |= asked
    if "PYTHONPATH" in asked:
        environment["PYTHONPATH"] = f"{search}:{asked['PYTHONPATH']}"


def _with_layers(mount: Mount, layers: list[Path]) -> Mount:
    """A layer that holds files below a read-only mount is laid over it there."""
    inside = mount.target.strip("/")
    over = [str(layer / inside) for layer in reversed(layers) if (layer / inside).is_dir()]
    return Mount(mount.source, mount.target, mount.writable, over)


def _lay(layer: Path, root: Path, left_out: Collection[str]) -> None:
    """Copied, for programs may write there."""
    for entry in sorted(layer.iterdir()):
        target = root / entry.name
        if entry.name in left_out:
            continue
        if entry.is_dir():
            shutil.copytree(entry, target, dirs_exist_ok=True)
        else:
            shutil.copy2(entry, target)


_RESOLVER = """import socket as s
def f(h, *a, _g=s.getaddrinfo, **k):
    return _g('::1' if h in ('i6pn.modal.local', b'i6pn.modal.local') else h, *a, **k)
s.getaddrinfo = f
"""


def _with_resolver(command: list[str]) -> list[str]:
    """`python … -m MODULE ARGS` with `i6pn.modal.local` known: there is no /etc/hosts of our own. Other commands go as they are."""
    if not os.path.basename(command[0]).startswith("python") or "-m" not in command:
        return command
    at = command.index("-m")
    module, arguments = command[at + 1], command[at + 2:]
    code = f"{_RESOLVER}import runpy, sys\nsys.argv[0] = {module!r}\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
    return [*command[:at], "-c", code, *arguments]


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
