"""Binding threads to the processors of a domain, and running tasks in helper threads inside a domain."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

from demitasse import WorkerError, process_lock
from demitasse_numa.topology import Domain

T = TypeVar("T")


def bind_thread(domain: Domain) -> None:
    """Bind the calling thread to a domain's processors. Threads that it starts afterwards inherit the
    binding: those that share a kernel's work, teams of OpenMP and BLAS, readers of samples (the second
    and third level of section 4.2). Does nothing for a domain without processors, or on a system that
    cannot bind threads. Raises WorkerError if the system refuses."""
    if not domain.cpus or not hasattr(os, "sched_setaffinity"):
        return
    try:
        os.sched_setaffinity(0, domain.cpus)
    except OSError as error:
        name = threading.current_thread().name
        raise WorkerError(
            f"thread {name!r} cannot be bound to {domain}, processors {sorted(domain.cpus)}: "
            f"{error.strerror}; was the process's cpuset changed since it started?"
        ) from error


@dataclass
class _Bound:
    """A bound thread: the processors that it had before, those that it was given, and the number of
    ``users`` that need it bound."""

    before: Set[int]
    given: Set[int]
    users: int = 0


_BOUND: WeakKeyDictionary[threading.Thread, _Bound] = WeakKeyDictionary()
_LOCK = process_lock(reentrant=True)  # a net that is garbage-collected meanwhile undoes its binding


def bound(domain: Domain) -> Callable[[], None]:
    """Bind the calling thread as ``bind_thread`` does. Returns a function that undoes this, which any
    thread may call. Once all users of the binding have called theirs, the thread gets its processors
    back, unless something else gave it others meanwhile. Raises WorkerError if the system refuses."""
    thread, number = threading.current_thread(), threading.get_native_id()
    can = bool(domain.cpus) and hasattr(os, "sched_setaffinity")
    with _LOCK:
        before = os.sched_getaffinity(0) if can else set[int]()
        bind_thread(domain)
        kept = _BOUND.setdefault(thread, _Bound(before, before))
        kept.users += 1
        kept.given = os.sched_getaffinity(0) if can else before

    def undo() -> None:
        with _LOCK:
            kept.users -= 1
            if kept.users:
                return
            _BOUND.pop(thread, None)
            if not can or not thread.is_alive():
                return
            # The thread may end at this moment, or a cpuset have been narrowed: nothing is left to undo.
            with contextlib.suppress(OSError):
                if os.sched_getaffinity(number) == kept.given:
                    os.sched_setaffinity(number, kept.before)

    return undo


def from_within(domain: Domain, task: Callable[[], T]) -> T:
    """Run ``task`` in a helper thread that is bound to a domain, and return its result. Memory that the
    task touches first lies in the domain (section 4.2, "first touch"). Raises what the task raises."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            bind_thread(domain)
            results.append(task())
        except BaseException as error:  # noqa: BLE001  raised in the caller's thread
            errors.append(error)

    helper = threading.Thread(target=run, name=f"demitasse-numa-{domain.index}", daemon=True)
    helper.start()
    helper.join()
    if errors:
        raise errors[0]
    return results[0]


def domain_here(domains: tuple[Domain, ...]) -> Domain:
    """Return the domain of the processor that the calling thread runs on. If the thread may run in
    several domains, this is the domain at this moment."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else frozenset[int]()
    inside = [each for each in domains if allowed and allowed <= each.cpus]
    if inside:
        return inside[0]
    cpu = current_cpu()
    return next((each for each in domains if cpu in each.cpus), domains[0])


def current_cpu() -> int | None:
    """Return the processor that runs the calling thread; None if the C library does not tell."""
    import ctypes

    ask = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return int(ask()) if ask is not None else None
