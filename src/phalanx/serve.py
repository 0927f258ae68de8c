"""The server process: `python -m phalanx.serve --state DIR`. Borrows its sockets from the front, serves, and gives them back."""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path

from phalanx.api.http_door import HttpDoor
from phalanx.api.serve import listener
from phalanx.config import Config
from phalanx.front.loan import FrontAbsent, LoanRefused, borrow
from phalanx.paths import Paths
from phalanx.server.server import Server
from phalanx.store.database import StoreError

LOG = logging.getLogger("phalanx.serve")

COLLECT_S = 1.0         # between two collections of what is new
COLLECT_ALL_S = 600.0   # and of everything: 0.3 s with a million records


def main() -> int:
    """Exit codes: 0 stopped by a signal, 1 could not start (a sentence says why), 70 a bug or a store that stopped writing."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))   # a descriptor for each rank's connection
    os.umask(0o077)     # rows and logs hold secrets of calls; whose state folder was there already, it may be open to all
    parser = argparse.ArgumentParser(prog="phalanx.serve")
    parser.add_argument("--state", type=Path, required=True)
    paths = Paths(parser.parse_args().state)
    logging.basicConfig(level=os.environ.get("PHALANX_LOG", "INFO"), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("grpclib").setLevel(logging.WARNING)     # its INFO is a line for each stream that a client closes
    try:
        return asyncio.run(serve(Config.load(paths.config), paths))
    except (FrontAbsent, LoanRefused, StoreError, OSError) as error:
        print(f"phalanx: {error}", file=sys.stderr)
        return 1


async def serve(config: Config, paths: Paths) -> int:
    """Serve until SIGTERM, SIGINT or the end of the front."""
    server = Server(config, paths)      # holds state and database first: a second server is told who has them
    loan = await borrow(paths.front_socket)
    http = await HttpDoor.open(server)
    doors = listener(server, http.protocol)
    server.start()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await loan.serving()
    await doors.serve(loan.public, loan.tasks)
    ready = paths.run / "server.json"
    ready.write_text(json.dumps({"pid": os.getpid(), "listen": loan.listen, "ready": True}))
    LOG.info("serving %s", loan.listen)
    collector = asyncio.ensure_future(collect_by_the_clock())
    lost = asyncio.ensure_future(loan.lost.wait())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({lost, stopped}, return_when=asyncio.FIRST_COMPLETED)
    collector.cancel()
    ready.unlink(missing_ok=True)
    await doors.close()
    await http.close()
    loan.give_back()
    server.close()
    return 0


async def collect_by_the_clock() -> None:
    """What the server knows is not garbage, and most of what a request makes is freed without the collector.

    Python collects by allocations, so a wave of requests, all of them alive, was walked again and again: a seventh of the loop's time.
    By the clock it costs what is new in a second; cycles are few (three objects a connection).
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    for second in itertools.count(1):
        await asyncio.sleep(COLLECT_S)
        gc.collect(2 if second % (COLLECT_ALL_S // COLLECT_S) == 0 else 1)


if __name__ == "__main__":
    sys.exit(main())
