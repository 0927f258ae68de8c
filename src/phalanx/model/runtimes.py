"""The runtimes of a node, the best first, and what each guarantees where nothing is in its way. The agent finds out by a try which one
works (node/choose.py); `phalanx doctor` predicts it from what the machine shows, and says what is missing (engines/ladder.py)."""

from __future__ import annotations

from collections.abc import Mapping

OCI = ("crun", "runc", "runsc")
AUTO = ("crun", "runc")             # what `--runtime auto` takes by itself; gVisor costs speed, so its owner asks for it
RUNTIMES = (*OCI, "process")

GUARANTEES = ("network", "pids", "limits", "images", "clean-up")     # each is "yes", "where delegated: …" or "no: why"
_IMAGES = "no: only the default image in this version"
ROOT: Mapping[str, str] = {"network": "yes", "pids": "yes", "limits": "yes", "images": _IMAGES, "clean-up": "yes"}
ROOTLESS: Mapping[str, str] = {
    "network": "yes among containers",
    "pids": "yes",
    "limits": "no: memory is watched, not limited",
    "images": _IMAGES,
    "clean-up": "yes",
}
PROCESS: Mapping[str, str] = {
    "network": "no: ranks share the machine's loopback (IPv4 127.x.y.(2+rank), IPv6 ::1)",
    "pids": "no: processes see each other",
    "limits": "no: memory is watched, not limited",
    "images": "no: the machine's own Python; no apt_install, no from_registry",
    "clean-up": "yes",
}
