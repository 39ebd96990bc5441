"""Threads that decode: shared by all sources of a process, and gone with the last of them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from demitasse import after_fork, process_lock

_pools: weakref.WeakValueDictionary[str, ThreadPoolExecutor] = weakref.WeakValueDictionary()
_lock = process_lock()
after_fork(_pools.clear)  # there are none of its threads


def decoders() -> ThreadPoolExecutor:
    """The pool, as long as somebody keeps it: as many threads as this process has cores."""
    with _lock:
        pool = _pools.get("pool")
        if pool is None:
            pool = _pools["pool"] = ThreadPoolExecutor(threads(), thread_name_prefix="decode")
        return pool


def threads() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_each(
    pool: ThreadPoolExecutor, count: int, work: Callable[[int], None], *, quick: bool = False
) -> None:
    """``work`` of every number below ``count``, each number once, divided over the pool, unless it is
    ``quick``: done sooner than threads pass the interpreter's lock to each other. Waits for all, then
    raises the error of the lowest number that failed. Where the process was forked off since it had the
    pool, this thread does all of it."""
    parts = min(count, threads()) if _pools.get("pool") is pool and not quick else 1
    errors: dict[int, Exception] = {}

    def some(start: int) -> None:
        for number in range(start, count, parts):
            try:
                work(number)
            except Exception as error:  # noqa: BLE001  it is raised below, by whoever waits
                errors[number] = error
                return

    if parts <= 1:
        some(0)
    else:
        wait([pool.submit(some, start) for start in range(parts)])
    if errors:
        raise errors[min(errors)]
