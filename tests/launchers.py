"""This environment's mpiexec, MPICH's or Open MPI's: how tests start processes with it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

LAUNCHER = Path(sys.executable).with_name("mpiexec")

SURVIVORS_SPEAK = "sh", "-c", 'trap "" USR1; "$0" "$@"; exit $?'
"""MPICH's launcher ends all processes of a host when one that it started itself dies by a signal, which
a shell in between makes a status; and it sends the others SIGUSR1 when one has ended too soon."""

ANYWHERE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""What lets Open MPI's mpiexec start more processes than there are cores, and as root in a container."""


def mpiexec() -> str:
    """The launcher; skips a test where there is none."""
    if not LAUNCHER.exists():
        pytest.skip(f"no MPI launcher at {LAUNCHER}: the mpich wheel brings one")
    return str(LAUNCHER)


@cache
def is_open_mpi() -> bool:
    """Whether the launcher is Open MPI's."""
    words = [mpiexec(), "--version"]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
    return "Open MPI" in told


def let_survive() -> list[str]:
    """Words for the launcher to let the others live when a process dies. Open MPI's ends with status 0
    then, whatever happens."""
    if is_open_mpi():
        options = "recoverable,error-nonzero-status=0"
        return ["--with-ft", "ulfm", "--runtime-options", options]
    return ["-disable-auto-cleanup"]


def allow() -> None:
    """Have what this process starts run anywhere."""
    for name, value in ANYWHERE.items():
        os.environ.setdefault(name, value)
