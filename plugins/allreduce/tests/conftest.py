"""Real processes: a script under mpiexec, with a limit, and what failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

LIMIT = 120.0
SOURCES = [Path(__file__).parents[1] / "src", Path(__file__).parents[3] / "core" / "src"]

SURVIVORS_SPEAK = "sh", "-c", 'trap "" USR1; "$0" "$@"; exit $?'
"""MPICH's launcher ends all ranks of a node when one that it started itself dies by a signal."""

BEGIN = """
import sys
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
"""


def let_survive(launcher: Path) -> list[str]:
    """Words for a launcher to let the others live when a process dies."""
    told = subprocess.run(
        [str(launcher), "--version"], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if "HYDRA" in told.stdout:
        return ["-disable-auto-cleanup"]
    return ["--runtime-options", "recoverable,error-nonzero-status=0"]  # Open MPI


@pytest.fixture(scope="session")
def survivors_live() -> list[str]:
    """Words for this environment's launcher to let the others live when a process dies."""
    launcher = Path(sys.executable).with_name("mpiexec")
    if not launcher.exists():
        pytest.skip(f"no MPI launcher at {launcher}: the mpich wheel brings one")
    return let_survive(launcher)


@pytest.fixture
def mpiexec(tmp_path: Path) -> Callable[..., str]:
    """Run a script on so many ranks, each with numpy, MPI, comm, rank and size; what they printed.

    Fails with all output when a rank fails, unless ``fails`` (None: what launchers make of it differs),
    and when ``limit`` seconds are over.
    """
    launcher = Path(sys.executable).with_name("mpiexec")
    if not launcher.exists():
        pytest.skip(f"no MPI launcher at {launcher}: the mpich wheel brings one")

    def run(
        ranks: int,
        script: str,
        *arguments: str,
        fails: bool | None = False,
        limit: float = LIMIT,
        options: str = "",
    ) -> str:
        path = tmp_path / "script.py"
        path.write_text(BEGIN + textwrap.dedent(script))
        outlive = let_survive(launcher) if "-disable-auto-cleanup" in options else options.split()
        command = [
            str(launcher),
            *outlive,
            "-n",
            str(ranks),
            *(SURVIVORS_SPEAK if "-disable-auto-cleanup" in options else ()),
            sys.executable,
            str(path),
            *arguments,
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}
        environment.pop("PYTHONUNBUFFERED", None)  # a line is to come whole
        # Two cores may have five ranks: those that wait for a message must not keep others from work.
        environment |= {"OMP_NUM_THREADS": "1", "MPIR_CVAR_CH4_GLOBAL_PROGRESS": "1"}
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{ranks} ranks did not end in {limit} s:\n{output}")
        if fails is not None and (process.returncode != 0) != fails:
            pytest.fail(f"{ranks} ranks ended with {process.returncode}:\n{output}")
        return output

    return run
