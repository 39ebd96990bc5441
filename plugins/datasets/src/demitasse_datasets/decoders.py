"""Threads that decode, shared by all sources of a process; they end with the last source."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from demitasse import after_fork, process_lock

_pools: weakref.WeakValueDictionary[str, ThreadPoolExecutor] = weakref.WeakValueDictionary()
_lock = process_lock()
after_fork(_pools.clear)  # a forked process has none of the threads


def decoders() -> ThreadPoolExecutor:
    """Return the pool, which lives as long as somebody refers to it; it has a thread per available
    core."""
    with _lock:
        pool = _pools.get("pool")
        if pool is None:
            pool = _pools["pool"] = ThreadPoolExecutor(threads(), thread_name_prefix="decode")
        return pool


def threads() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_each(
    pool: ThreadPoolExecutor, count: int, work: Callable[[int], None], *, quick: bool = False
) -> None:
    """Call ``work`` once for each number below ``count``, divided over the pool. If the work is
    ``quick``, this thread does all of it, sooner than threads would pass the interpreter's lock to each
    other; likewise if the process was forked since it got the pool. Waits for all, then raises the error
    of the lowest number that failed."""
    parts = min(count, threads()) if _pools.get("pool") is pool and not quick else 1
    errors: dict[int, Exception] = {}

    def some(start: int) -> None:
        for number in range(start, count, parts):
            try:
                work(number)
            except Exception as error:  # noqa: BLE001  raised below, in the thread that waits
                errors[number] = error
                return

    if parts <= 1:
        some(0)
    else:
        wait([pool.submit(some, start) for start in range(parts)])
    if errors:
        raise errors[min(errors)]
