"""Processes that a launcher has started together: what they print, and which of them prints it."""

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
    """How many processes a launcher has started as one run; 1 without a launcher."""
    found = launched()
    return (found and found.size) or 1


def rank() -> int | None:
    """The number of this process among them; None if there are no others."""
    found = launched()
    return found.rank if found is not None and processes() > 1 else None


TIMEOUTS = {"peer_timeout": "2 s", "stall_timeout": "2 s"}
"""How many seconds a process that ends with an error waits for others with the same error."""

MEETING = 30.0
"""How many seconds may pass in total, including the start of MPI."""

SPEAKING = 1.0
"""Within so many seconds, another process of this host will have reported an error that all have met."""

JOINING = ("train", "simulate")
"""Commands of which all processes do the same, so that they meet the same errors."""


@contextmanager
def told_once() -> Iterator[None]:
    """Of processes that were started together, let only the first write to standard output. For errors,
    see ``said_once``."""
    if not rank():
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


def name() -> str:
    """The name under which this process reports something of its own."""
    return "demitasse" if rank() is None else f"demitasse, rank {rank()}"


@contextmanager
def said_once(words: str, everywhere: bool = False) -> Iterator[str | None]:
    """Yield the name under which this process reports an error, or None if another process reports the
    same message for all, and has done so when the context ends. (A launcher kills all other processes as
    soon as one has ended with an error, so the silent ones wait.) If processes cannot communicate, each
    reports the error; but if it is known to be met ``everywhere``, only the first of each host does."""
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
    """Return the processes of the run if all of them end with this message; None if they do not, or not
    in time, or if no plugin connects processes."""
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
    """Run ``work``, but continue without it if it fails: whatever keeps processes from communicating is
    not the error to be reported. MPI itself waits forever for a process that never starts MPI, and
    meanwhile holds the interpreter's lock; then this process ends with a traceback."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        told = sys.stderr if _is_file(sys.stderr) else nowhere
        faulthandler.dump_traceback_later(MEETING, exit=True, file=told)
        try:
            with suppress(Exception):
                work()
        finally:
            faulthandler.cancel_dump_traceback_later()


def _is_file(stream: Any) -> bool:
    """Whether a stream has a file descriptor."""
    try:
        return int(stream.fileno()) >= 0
    except (AttributeError, OSError, ValueError):
        return False


def outlive_others() -> None:
    """Let this process survive to report what happened when another one dies: MPICH's launcher then
    sends SIGUSR1, which ends a process without a handler for it."""
    number = getattr(signal, "SIGUSR1", None)  # Windows has none
    if number is not None and processes() > 1 and signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, signal.SIG_IGN)


def check_together(runtime: Runtime) -> None:
    """Raise CompositionError if several processes were started that would each train separately. If that
    is intended, as SLURM_MPI_TYPE=none in a process of srun shows, print a note instead."""
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
        # Whoever measured this machine gives it such a level if a composed plugin sums over processes.
        others = f"give it one, or {remedy}" if machine.path is None else "give it one, or use --hw auto"
        remedy = f'{machine.origin} has no level with workers = "mpi"; {others}'
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
    """Return a sentence if this host's processes are bound to half or fewer of the cores that their
    launcher may use: by default, Open MPI's mpiexec binds each of one or two processes to one core.
    Otherwise ""."""
    found = launched()
    if found is None or found.launcher != OPEN_MPI or not hasattr(os, "sched_getaffinity"):
        return ""  # srun gives each task the cores requested, and may itself use all
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
    """Return a sentence if a description has more or fewer processes than the ``started`` ones; "" if
    the numbers agree, or if it does not give one."""
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
