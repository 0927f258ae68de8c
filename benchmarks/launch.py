"""How long until every rank is in user code, and until the caller has the result: Phalanx beside other launchers, in one run.

    python benchmarks/launch.py --sizes 2,4,16 --rounds 7 --peers-python ENV/bin/python

`benchmarks/README.md` says what is measured, what each peer needs, and how to read the tables. Nothing is installed by this program;
a peer that is absent is a row that says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import report
import rounds
from peers.daemons import adopt_orphans, reap_orphans
from peers.floor import Floor
from peers.mpi import Mpirun
from peers.peer import Peer
from peers.phalanx import Phalanx, StatelessServer
from peers.ray_cluster import Ray
from peers.slurm import Srun
from peers.torch_run import Torchrun


def main() -> int:
    options = parse()
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))      # through the `finally` that stops all peers
    peers = chosen_peers(options)
    folder = Path(tempfile.mkdtemp(prefix="pb-"))        # short: Unix sockets lie in it
    tables = []
    try:
        report.print_machine(folder)
        report.print_versions(peers)
        for size in options.sizes:
            measured = rounds.measure(size, peers, folder / str(size), options.rounds, options.warm_rounds)
            report.print_tables(size, measured)
            tables.append(measured)
        report.print_machine(folder)
    finally:
        left = reap_orphans()
    for command in left:
        print(f"left behind by a peer, and ended here: {command}")
    if any(measured.failures for measured in tables) or len(tables) < len(options.sizes):
        print(f"what failed left its logs in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if left else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=_numbers, default=[2, 4, 16], help="numbers of ranks, with tables of their own (default 2,4,16)")
    parser.add_argument("--rounds", type=int, default=7, help="launches of each peer and size (default 7)")
    parser.add_argument("--warm-rounds", type=int, default=30, help="calls on what is warm (default 30)")
    parser.add_argument("--only", type=_words, default=[], help="only peers whose name has one of these words; the floor is always there")
    parser.add_argument("--peers-python", type=Path, default=os.environ.get("PEERS_PYTHON") or None,
                        help="interpreter of an environment with ray, torch and modal (or $PEERS_PYTHON)")  # fmt: skip
    return parser.parse_args()


def chosen_peers(options: argparse.Namespace) -> list[Peer]:
    """In the order in which they take their turns. Ray comes last: its groups need a while to be released."""
    own, others = sys.executable, options.peers_python
    peers: list[Peer] = [Floor(own), Phalanx("crun"), Phalanx("process"), StatelessServer(False), StatelessServer(True)]
    peers += [Srun(own), Mpirun(own), Torchrun(others), Ray(others)]
    return [peer for peer in peers if peer.name == Floor.name or not options.only or any(word in peer.name for word in options.only)]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _words(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
