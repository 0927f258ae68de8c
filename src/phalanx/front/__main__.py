"""python -m phalanx.front --state DIR (--listen HOST:PORT | --public-fd N --tasks-fd N)

With descriptors it takes listening sockets that the supervisor made, so that the port outlives this process too.
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
import socket
import sys
from pathlib import Path

from phalanx.front.lending import Front, FrontRunning, take_lock
from phalanx.listening import adopt, listen_tcp, listen_unix
from phalanx.paths import Paths


async def run(paths: Paths, public: socket.socket, tasks: socket.socket) -> None:
    front = Front(paths, public, tasks)
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, front.stop)
    print(json.dumps({"listen": front.listen, "pid": os.getpid()}), flush=True)
    await front.run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m phalanx.front", description="Owns the public sockets of one state folder.")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--listen", help="HOST:PORT; port 0 takes a free one")
    parser.add_argument("--public-fd", type=int, help="a listening TCP socket")
    parser.add_argument("--tasks-fd", type=int, help="a listening Unix socket, at the state's tasks_socket")
    options = parser.parse_args()
    if (options.listen is None) == (options.public_fd is None) or (options.public_fd is None) != (options.tasks_fd is None):
        parser.error("give --listen, or both --public-fd and --tasks-fd")
    logging.getLogger("grpclib").setLevel(logging.ERROR)       # a held request whose client left is no news
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))   # one descriptor a waiting client
    paths = Paths(options.state)
    try:
        paths.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = take_lock(paths)
        if options.listen is None:
            asyncio.run(run(paths, adopt(options.public_fd), adopt(options.tasks_fd)))
        else:
            asyncio.run(run(paths, listen_tcp(options.listen), listen_unix(paths.tasks_socket)))
            paths.tasks_socket.unlink(missing_ok=True)
        lock.close()
    except (FrontRunning, OSError, ValueError) as error:
        print(f"phalanx front: {error.strerror if isinstance(error, OSError) and error.strerror else error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
