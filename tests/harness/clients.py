"""Environments with other versions of the stock client, made once and kept beside the checkout's own.

PHALANX_TEST_CLIENTS names a folder that has them already, as <version>/bin/python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".venv-clients"
OLDER_CLIENTS = ("1.3.5", "1.0.5", "0.73.173")


def client_python(version: str) -> str:
    """The interpreter of an environment that has modal of this version."""
    named = os.environ.get("PHALANX_TEST_CLIENTS")
    if named:
        for name in (version, f"v{version}"):
            python = Path(named) / name / "bin" / "python"
            if python.exists():
                return str(python)
    place = CACHE / version
    python = place / "bin" / "python"
    if (place / "complete").exists():
        return str(python)
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    wanted = [f"modal=={version}", *(["aiohttp<3.12"] if version.startswith("0.") else [])]     # why: phalanx/server/clients.py
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], check=True)
    (place / "complete").touch()
    return str(python)


def share_client_packages(state: Path) -> None:
    """Let a control plane find the client packages that earlier ones made: another version's comes by pip and takes half a minute."""
    packages = CACHE / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    state.mkdir(parents=True, exist_ok=True)
    (state / "clients").symlink_to(packages)
