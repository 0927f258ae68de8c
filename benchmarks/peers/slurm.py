"""srun on a Slurm of its own: munged, slurmctld and one slurmd a node, all on this machine, in a temporary folder on private ports.

Daemons are warm, every round is a new allocation. proctrack/linuxproc and no cgroups: the fastest set-up, which also leaves nothing behind.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path

from peers.daemons import Daemon, end_descendants, free_ports
from peers.peer import Launcher, RoundFailed, Timing, output_of, rank_command, timed_command

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
START_S = 60.0

CONFIG = """\
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MinJobAge=60
NodeName=node[{indices}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=16 State=UNKNOWN
PartitionName=main Nodes=node[{indices}] Default=YES OverSubscribe=EXCLUSIVE MaxTime=INFINITE State=UP
"""


class Srun(Launcher):
    name = "srun"

    def __init__(self, python: str) -> None:
        self._python = python
        self._daemons: list[Daemon] = []
        self._env: dict[str, str] = {}

    def missing(self) -> str:
        absent = [program for program in PROGRAMS if not shutil.which(program)]
        if absent:
            return "not installed"
        return "" if os.geteuid() == 0 else "needs root (slurmd)"

    def version(self) -> str:
        return output_of("slurmd", "-V")       # srun itself wants a configuration even for this

    def start(self, folder: Path, size: int) -> None:
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir(parents=True)
        (folder / "munge").chmod(0o700)
        self._start_munged(folder)
        port = free_ports(size + 1)
        indices = f"00-{size - 1:02d}"
        config = folder / "slurm.conf"
        config.write_text(CONFIG.format(folder=folder, host=socket.gethostname().split(".")[0], port=port, indices=indices,
                                        first=port + 1, last=port + size))
        self._env = os.environ | {"SLURM_CONF": str(config)}
        self._daemons.append(Daemon(["slurmctld", "-D", "-f", str(config)], folder / "slurmctld.log", self._env))
        for index in range(size):
            node = f"node{index:02d}"
            (folder / "spool" / node).mkdir()
            self._daemons.append(Daemon(["slurmd", "-D", "-N", node, "-f", str(config)], folder / f"slurmd-{node}.log", self._env))
        self._wait_for_idle(size)

    def round(self, size: int, runner: bool) -> Timing:
        flags = [f"-N{size}", f"-n{size}", "--exclusive", "--quiet", "--immediate=60"]
        return timed_command(["srun", *flags, *rank_command(self._python, runner)], size, self._env)

    def stop(self) -> None:
        if self._daemons:
            end_descendants([daemon.pid for daemon in reversed(self._daemons)])
        self._daemons = []

    def _start_munged(self, folder: Path) -> None:
        key = folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        state = folder / "munge"
        self._daemons.append(Daemon(
            ["munged", "-F", "--force", "-S", str(folder / "munge.socket"), f"--key-file={key}", f"--log-file={state}/log",
             f"--pid-file={state}/pid", f"--seed-file={state}/seed"], folder / "munged.log"))
        self._until(lambda: (folder / "munge.socket").exists(), "munged")

    def _wait_for_idle(self, size: int) -> None:
        def idle() -> bool:
            said = subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], env=self._env, capture_output=True, text=True, timeout=30)
            return sum(int(line) for line in said.stdout.split()) == size

        self._until(idle, f"{size} idle nodes")

    def _until(self, condition, what: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            dead = next((daemon for daemon in self._daemons if daemon.ended), None)
            if dead or time.monotonic() > deadline:
                log = (dead or self._daemons[-1]).log
                raise RoundFailed(f"Slurm did not come up ({what}); {log} ends: {log.read_text(errors='replace')[-600:]}")
            time.sleep(0.1)
