"""Where workers compute: each on processors of its own, if all processors are then used evenly."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from demitasse import Machine


def processors() -> list[int]:
    """Return the processors that this process may use, as its first thread may; all of them, by number,
    if the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(os.getpid()))
    return list(range(os.cpu_count() or 1))


def place(index: int, workers: int, threads: int, available: Sequence[int]) -> list[int]:
    """Return the processors of worker ``index`` among ``workers`` of ``threads`` threads each; empty if
    some processors would then have more work than others."""
    count = len(available)
    if count < 2 or threads > count or (workers * threads) % count:
        return []
    first = index * threads % count
    return [available[(first + i) % count] for i in range(threads)]


def bind(index: int, workers: int, machine: Machine | None) -> bool:
    """Bind the calling thread, and threads that it starts later, to a worker's processors. Returns
    whether this was done. It is not done if the thread is bound already (as in a memory domain), or if
    other processes of the run may use the same processors.

    When placement was left to the system, two workers were seen on one of two processors for seconds:
    they wake each other, so the system takes them to belong together.
    """
    if machine is None or machine.simulated or not hasattr(os, "sched_setaffinity"):
        return False
    if any(level.workers in ("mpi", "streams") for level in machine.levels):
        return False
    several = [level for level in machine.levels if level.workers == "threads" and level.count > 1]
    if len(several) != 1 or threading.current_thread() is threading.main_thread():
        return False
    available = processors()
    sharing = (level.cores // several[0].count for level in machine.levels if level.cores)
    mine = place(index, workers, several[0].cores or next(sharing, 1) or 1, available)
    if not mine or sorted(os.sched_getaffinity(0)) != available:
        return False
    os.sched_setaffinity(0, mine)
    return True
