"""Whether a launcher has started this process with others, by what it leaves in the environment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demitasse import Runtime

SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_WORLD_SIZE")
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MPI_WORLD_RANK")


def processes() -> int:
    """How many a launcher has started; 1 where there was none."""
    return max((_number(name) for name in SIZES), default=0) or 1


def rank() -> int | None:
    """The number of this process among those; None where there are no others."""
    if processes() == 1:
        return None
    return next((_number(name) for name in RANKS if name in os.environ), None)


@contextmanager
def told_once() -> Iterator[None]:
    """Of processes that were started together the first alone writes to standard output; errors are
    everybody's."""
    if not rank():
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def outlive_others() -> None:
    """Let this process go on to say what happened when another one dies: MPICH's launcher then sends
    SIGUSR1, which ends a process that does not know it."""
    if processes() > 1 and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def check_together(runtime: Runtime) -> None:
    """Raise CompositionError when several processes were started that would each train alone."""
    from demitasse import CompositionError

    if processes() == 1 or runtime.processes.size > 1:
        return
    machine = runtime.machine
    remedy = "compose the plugin 'allreduce'"
    if not any(level.workers == "mpi" for level in machine.levels):
        remedy = f'{machine.origin} has no level with workers = "mpi"; give it one, or {remedy}'
    if machine.simulated:
        remedy = f"{machine.origin} is described elsewhere, and only simulated here"
    raise CompositionError(f"{processes()} processes were started, and each would train alone: {remedy}")


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else 0
