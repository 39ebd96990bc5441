"""Locks and threads across a fork: what a thread of the parent holds, no thread of the child gives
back."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any


def process_lock(*, reentrant: bool = False) -> threading.Lock:
    """A lock for a module. A forked process finds it free, even if a thread of its parent held it, as
    that thread does not exist there. What it guards must be consistent at any time."""
    lock: Any = threading.RLock() if reentrant else threading.Lock()
    if hasattr(os, "register_at_fork"):  # elsewhere locks cannot be made anew
        after_fork(lock._at_fork_reinit)
    return lock  # type: ignore[no-any-return]


def after_fork(action: Callable[[], Any]) -> None:
    """Have a function called first in every process that is forked, if the system forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


class _Here:
    threads_lost = False


def lose_threads() -> None:
    """To be called in a forked process by what shares the work of kernels among threads: these are the
    parent's."""
    _Here.threads_lost = True


def threads_here(wanted: int) -> int:
    """The number of threads that a kernel, which may use so many, computes with in this process."""
    return 1 if _Here.threads_lost else wanted


@cache
def fork_between_compilations() -> None:
    """From now on a fork waits, for some seconds at most, until no thread compiles with numba: in the
    child the locks of numba and LLVM would be held for ever, and what they guard left half made. A
    version of numba that has its locks elsewhere is left alone."""
    numbas = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    llvms = getattr(getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None), "_lock", None)
    for lock in (llvms, numbas):  # what is registered last is called first, as threads take them
        if lock is not None and hasattr(os, "register_at_fork"):
            give_back = _leaving(lock)
            os.register_at_fork(
                before=lock.__enter__, after_in_parent=give_back, after_in_child=give_back
            )


def _leaving(lock: Any) -> Callable[[], None]:
    return lambda: lock.__exit__(None, None, None)
