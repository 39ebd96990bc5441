"""What processes that a launcher has started together say, and which of them says it."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import demitasse
from demitasse import launched, launched_by_srun, local_rank

if TYPE_CHECKING:
    from demitasse import Machine, Processes, Runtime

OPEN_MPI = "Open MPI's mpiexec"


def processes() -> int:
    """How many a launcher has started to be one run; 1 where there was none."""
    found = launched()
    return (found and found.size) or 1


def rank() -> int | None:
    """The number of this process among those; None where there are no others."""
    found = launched()
    return found.rank if found is not None and processes() > 1 else None


TIMEOUTS = {"peer_timeout": "2 s", "stall_timeout": "2 s"}
"""For how long a process that ends with an error waits for others that may end with the same one."""

MEETING = 30.0
"""Seconds for starting MPI and all of that."""

SPEAKING = 1.0
"""Seconds in which another process of this host will have told of an error that all have met."""

JOINING = ("train", "simulate")
"""Commands of which all processes do the same, and meet the same errors."""


@contextmanager
def told_once() -> Iterator[None]:
    """Of processes that were started together the first alone writes to standard output; of errors
    ``said_once`` tells."""
    if not rank():
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


def name() -> str:
    """As whom this process speaks for itself."""
    return "demitasse" if rank() is None else f"demitasse, rank {rank()}"


@contextmanager
def said_once(words: str, everywhere: bool = False) -> Iterator[str | None]:
    """As whom this process tells of an error; None: another one says the same words for all, and has
    said them when the context ends. (A launcher ends all others as soon as one has ended with an error,
    so the silent ones wait.) Of processes that cannot meet each one tells, but the first of each host
    alone where the error is known to be met ``everywhere``."""
    met = None if rank() is None else _meet(words)
    if met is None and everywhere and local_rank():
        yield None
        time.sleep(SPEAKING)
        return
    if met is None:
        yield name()
        return
    yield "demitasse" if met.rank == 0 else None
    _in_time(lambda: met.gather(None))
    _in_time(met.close)


def _meet(words: str) -> Processes | None:
    """All processes, where all of them end with these words; None where they do not, or not in time,
    or no plugin joins processes."""
    from demitasse import Level, Machine, discover

    machine, found = Machine("the command line", (Level("machine"),)), list[Any]()

    def meet() -> None:
        for manifest in discover():
            if "processes" in manifest.roles and not manifest.problem:
                plugin = importlib.import_module(manifest.module)
                found.append(plugin.processes(machine=machine, options={**TIMEOUTS, "error": words}))

    _in_time(meet)
    return next(filter(None, found), None)


def _in_time(work: Callable[[], object]) -> None:
    """Do it, but go on without it when it fails: whatever keeps processes from meeting, the error that
    is to be told of is another one. One that never starts MPI is waited for without an end by MPI
    itself, which holds the interpreter's lock meanwhile; then this process ends with a traceback."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        told = sys.stderr if _is_file(sys.stderr) else nowhere
        faulthandler.dump_traceback_later(MEETING, exit=True, file=told)
        try:
            with suppress(Exception):
                work()
        finally:
            faulthandler.cancel_dump_traceback_later()


def _is_file(stream: Any) -> bool:
    """Whether a stream is the system's as well."""
    try:
        return int(stream.fileno()) >= 0
    except (AttributeError, OSError, ValueError):
        return False


def outlive_others() -> None:
    """Let this process go on to say what happened when another one dies: MPICH's launcher then sends
    SIGUSR1, which ends a process that does not know it."""
    number = getattr(signal, "SIGUSR1", None)  # Windows knows none
    if number is not None and processes() > 1 and signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, signal.SIG_IGN)


def check_together(runtime: Runtime) -> None:
    """Raise CompositionError when several processes were started that would each train alone; where it
    is meant, as SLURM_MPI_TYPE=none in a process of srun's tells, say so."""
    from demitasse import CompositionError

    if (step := launched_by_srun()) is not None:
        (srun, may_meet), count = step, step[0].size or 1
        if count > 1 and not may_meet and srun.rank == 0:
            print(
                f"demitasse: each of srun's {count} processes trains alone (SLURM_MPI_TYPE=none); "
                f"only one of them may write snapshots with the same prefix",
                file=sys.stderr,
            )
        if not may_meet:
            return
    if processes() == 1 or runtime.processes.size > 1:
        return
    machine = runtime.machine
    remedy = "compose the plugin 'allreduce'" + demitasse.uninstalled("collectives")
    if not any(level.workers == "mpi" for level in machine.levels):
        remedy = f'{machine.origin} has no level with workers = "mpi"; give it one, or {remedy}'
    if machine.simulated:
        mark = (
            f"has the fingerprint {machine.fingerprint!r}"
            if machine.fingerprint
            else "has no fingerprint"
        )
        remedy = (
            f"{machine.origin} {mark}, so it describes another machine, only simulated here; give it "
            f'fingerprint = "any" to run it on the hosts of this job'
        )
    raise CompositionError(f"{processes()} processes were started, but each would train alone: {remedy}")


def bound_narrowly() -> str:
    """That this host's processes are bound to half or fewer of the cores that their launcher may use, as
    Open MPI's mpiexec binds one or two to a core each unless it is told otherwise; "" else."""
    found = launched()
    if found is None or found.launcher != OPEN_MPI or not hasattr(os, "sched_getaffinity"):
        return ""  # srun gives each task what was asked for, and may use all itself
    try:
        mine, all_of_them = len(os.sched_getaffinity(0)), len(os.sched_getaffinity(os.getppid()))
    except OSError:
        return ""
    count = found.local or 1
    if 2 * mine * count > all_of_them:
        return ""
    who = f"each of this host's {count} processes" if count > 1 else "this process"
    return (
        f"{who} is bound to {mine} of {all_of_them} processors; mpiexec --bind-to none uses all of them"
    )


def counted_otherwise(machine: Machine, started: int) -> str:
    """That a description has more or fewer processes than the ``started`` ones, or "" where it has as
    many, or says nothing of their number."""
    working = [level for level in machine.levels if level.workers == "mpi"]
    if not working:
        return ""
    level, described = working[-1], working[-1].count
    around = level
    while around.parent is not None:
        around = machine.level(around.parent)
        described *= around.count
    if described in (1, started):
        return ""
    place = level.location or machine.origin
    has = f"{described} processes (level {level.name!r} of {place})"
    return (
        f"{has} are described, but {started} {'was' if started == 1 else 'were'} started and will train"
    )
