"""How to start a front."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

from phalanx.paths import Paths


@dataclass
class RunningFront:
    paths: Paths
    listen: str
    process: subprocess.Popen[str]


def front_command(paths: Paths, listen: str = "127.0.0.1:0") -> list[str]:
    return [sys.executable, "-m", "phalanx.front", "--state", str(paths.state), "--listen", listen]
