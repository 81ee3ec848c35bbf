"""A Slurm of one node on this machine, started without systemd, with GPUs that are none.

Needs Slurm's daemons (on Debian: slurmctld, slurmd, slurm-client), and no munge: who may talk to whom is
not what is tested. Its GPUs are names of devices that every Linux has; Slurm only counts them, and tells
its jobs which ones are theirs.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from typing import TYPE_CHECKING, Any

from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["SlurmNode", "missing"]

_PROGRAMS = ("slurmctld", "slurmd", "sinfo", "sbatch", "srun", "squeue", "scancel")
_SOME_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
_CONFIGURATION = """
ClusterName=grn-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=4000 Gres=gpu:{gpus}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Say why no Slurm can be started here, "" if one can."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if lacking:
        return (
            f"no Slurm here ({', '.join(lacking)}): apt-get install slurmctld slurmd slurm-client"
        )
    if not all(os.path.exists(device) for device in _SOME_DEVICES):
        return "no devices here that could stand for GPUs"
    return ""


class SlurmNode:
    """The controller and the node, until `close`."""

    def __init__(self, folder: Path, popen: Callable[..., Any], *, gpus: int) -> None:
        """Start both, as processes that `popen` looks after."""
        self._folder = folder
        self._host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool", "devices", "bin"):
            (folder / name).mkdir(parents=True)
        self._write_configuration(gpus)
        self.environ = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{folder}/bin:{os.environ['PATH']}:/usr/sbin",
        }
        self._daemons = [
            self._start(popen, "slurmctld", "-D"),
            self._start(popen, "slurmd", "-D", "-N", self._host),
        ]

    def _write_configuration(self, gpus: int) -> None:
        folder = self._folder
        for number, device in enumerate(_SOME_DEVICES[:gpus]):
            (folder / "devices" / f"gpu{number}").symlink_to(device)
        port, node_port = _free_port(), _free_port()
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                host=self._host,
                port=port,
                node_port=node_port,
                user=getpass.getuser(),
                folder=folder,
                gpus=gpus,
            )
        )
        (folder / "gres.conf").write_text(
            f"NodeName={self._host} Name=gpu File={folder}/devices/gpu[0-{gpus - 1}]\n"
        )
        # Snakemake's plugin takes all of Slurm's variables from the steps of a job, this one too.
        srun = folder / "bin" / "srun"
        real = shutil.which("srun", path=f"{os.environ['PATH']}:/usr/bin")
        srun.write_text(f'#!/bin/sh\nexport SLURM_CONF={folder}/slurm.conf\nexec {real} "$@"\n')
        srun.chmod(0o755)

    def _start(self, popen: Callable[..., Any], *words: str) -> Any:
        with open(self._folder / f"{words[0]}.out", "wb") as output:
            return popen(
                list(words),
                env={**os.environ, **self.environ},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_up(self, within_s: float = PATIENCE_S) -> str:
        """Wait until jobs can be submitted; return why they cannot, "" if they can."""
        try:
            eventually(lambda: self._has_ended() or self._is_up(), within_s, "the node is idle")
        except AssertionError as error:
            return f"Slurm did not start: {error}; {self.log()[-500:]}"
        return f"Slurm did not start: {self.log()[-500:]}" if self._has_ended() else ""

    def _has_ended(self) -> bool:
        return any(daemon.poll() is not None for daemon in self._daemons)

    def _is_up(self) -> bool:
        said = subprocess.run(
            ["sinfo", "-h", "-o", "%T"],
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return "idle" in said.stdout

    def log(self) -> str:
        """Return what the daemons have said of errors."""
        said = []
        for name in ("slurmctld", "slurmd"):
            for path in (self._folder / f"{name}.log", self._folder / f"{name}.out"):
                if path.exists():
                    said += [line for line in path.read_text().splitlines() if "rror" in line]
        return "\n".join(said)

    def close(self) -> None:
        """End the node and the controller."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                daemon.kill()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
