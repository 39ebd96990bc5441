"""The contenders: how each is launched, and with which settings. Each peer is tried with several
settings, of which the best counts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Contender:
    """A library with one setting: the worker's function, the interpreter, the launcher's arguments, and
    the environment. ``peer`` is the peer whose setting it is; ours have none."""

    name: str
    function: str
    python: Path
    launcher: tuple[str, ...]
    environment: Mapping[str, str]
    peer: str = ""

    def launch(self, ranks: int, port: int, log: BinaryIO) -> list[subprocess.Popen[bytes]]:
        """Start all ranks, which then report at ``port``. Their output, and their launcher's, goes to
        ``log``."""
        command = [str(self.python), str(WORKER), self.function, self.name, str(port), str(ranks)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        if self.launcher:
            whole = [*self.launcher, "-n", str(ranks), *command]
            return [_started(whole, environment, log)]
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        return [
            _started(command, {**environment, **meeting, "RANK": str(rank)}, log)
            for rank in range(ranks)
        ]


def _started(
    command: Sequence[str], environment: Mapping[str, str], log: BinaryIO
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


MPICH_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "reduce_scatter": {
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "reduce_scatter_allgather",
        "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE": "0",
    },
    "ring": {
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",
        "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE": "0",
    },
    "release_gather": {
        "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather",
        "MPIR_CVAR_COLL_SHM_LIMIT_PER_NODE": "1048576",
    },
}
OPENMPI_SETTINGS: Mapping[str, Sequence[str]] = {
    "default": (),
    "ring segmented": (
        *("--mca", "coll_tuned_use_dynamic_rules", "1"),
        *("--mca", "coll_tuned_allreduce_algorithm", "5", "--mca", "coll", "^han"),
    ),
    "rabenseifner": (
        *("--mca", "coll_tuned_use_dynamic_rules", "1"),
        *("--mca", "coll_tuned_allreduce_algorithm", "6", "--mca", "coll", "^han"),
    ),
    "xhc": ("--mca", "coll_xhc_priority", "100"),
    "cma": ("--mca", "smsc", "cma", "--mca", "btl", "self,sm"),
}


def contenders(
    mpich: Path, openmpi: Path | None, torch: Path | None, settings: str
) -> tuple[list[Contender], list[str]]:
    """Return ours, the peers that are installed (``settings``: "all", or only their defaults), and what
    is missing. ``mpich`` is the interpreter that has ours and MPICH's."""
    hydra = (str(mpich.with_name("mpiexec")),)
    found = [
        Contender("shared", "shared", mpich, hydra, {}),
        Contender("ordinary", "call", mpich, hydra, {}),
    ]
    for name, variables in MPICH_SETTINGS.items():
        found.append(Contender(f"mpich {name}", "mpi", mpich, hydra, variables, "mpich"))
    absent = []
    if openmpi and openmpi.exists():
        for name, words in OPENMPI_SETTINGS.items():
            launcher = (
                str(openmpi.with_name("mpiexec")),
                "--allow-run-as-root",
                "--oversubscribe",
                *words,
            )
            found.append(Contender(f"openmpi {name}", "mpi", openmpi, launcher, {}, "openmpi"))
    else:
        absent.append("openmpi")
    if torch and torch.exists():
        found.append(Contender("gloo", "gloo", torch, (), {}, "gloo"))
    else:
        absent.append("gloo")
    if settings != "all":
        found = [each for each in found if not each.peer or each.name in settings.split(",")]
    return found, absent


def this_python() -> Path:
    return Path(sys.executable)
