"""The way out to the internet for a fleet in a user namespace: slirp4netns, started from outside on the launcher's namespaces.

It gives the fleet's namespace an interface and a default route, which containers masquerade to. The machine itself is hidden from them.
(pasta of 2023, which Debian 12 has, let masqueraded connections begin and then stall, with an MTU of 1500 too: not used.)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from . import programs
from .launching import Launcher, LaunchFailed

_PATIENCE_SECONDS = 3.0
_TUN = "/dev/net/tun"


async def open_way(launcher: Launcher, folder: Path) -> str:
    """Start what there is; "" when the fleet has a way out, else why not. `folder` keeps the helper's pid."""
    if await _has_route(launcher):
        return ""
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"no way out to the internet: this user may not open {_TUN}"
    pid = (await launcher.ask(task="hello"))["pid"]
    slirp = programs.find("slirp4netns")
    if slirp is None:
        return "no way out to the internet (install slirp4netns for one)"
    process = await asyncio.create_subprocess_exec(
        slirp, "--configure", "--mtu=1500", "--disable-host-loopback", f"--userns-path=/proc/{pid}/ns/user", "--netns-type=path",
        f"/proc/{pid}/ns/net", "tap0", start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
    (folder / "outbound.pid").write_text(str(process.pid))
    if await _comes_up(launcher, process):
        return ""
    close_way(folder)
    return "no way out to the internet: slirp4netns did not come up"


def close_way(folder: Path) -> None:
    """End the helper; quiet when there is none."""
    path = folder / "outbound.pid"
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_text())
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name.startswith("slirp4netns"):      # else the number is somebody else's by now
            os.kill(pid, signal.SIGKILL)
        path.unlink()


async def _comes_up(launcher: Launcher, process: asyncio.subprocess.Process) -> bool:
    deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
    while asyncio.get_running_loop().time() < deadline and process.returncode is None:
        if await _has_route(launcher):
            return True
        await asyncio.sleep(0.02)
    return False


async def _has_route(launcher: Launcher) -> bool:
    with contextlib.suppress(LaunchFailed):
        return bool((await launcher.ask(task="uplink"))["route"])
    return False
