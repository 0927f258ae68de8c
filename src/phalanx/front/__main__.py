"""python -m phalanx.front --state DIR --listen HOST:PORT

Prints one line {"listen": "127.0.0.1:8900", "pid": 4711} once it listens. Ends at SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from phalanx.front.lending import Front, FrontRunning
from phalanx.paths import Paths


async def run(paths: Paths, listen: str) -> None:
    front = Front(paths, listen)
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, front.stop)
    print(json.dumps({"listen": front.listen, "pid": os.getpid()}), flush=True)
    await front.run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m phalanx.front", description="Owns the public sockets of one state folder.")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--listen", required=True, help="HOST:PORT; port 0 takes a free one")
    options = parser.parse_args()
    logging.getLogger("grpclib").setLevel(logging.ERROR)       # a held request whose client left is no news
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))   # one descriptor a waiting client
    try:
        asyncio.run(run(Paths(options.state), options.listen))
    except (FrontRunning, OSError, ValueError) as error:
        print(f"phalanx front: {error.strerror if isinstance(error, OSError) and error.strerror else error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
