"""Locks and threads across a fork: no thread of the child would release what a thread of the parent
holds."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any


def process_lock(*, reentrant: bool = False) -> threading.Lock:
    """Return a lock for a module. A forked process finds it free, even if a thread of its parent held
    it, because that thread does not exist there. The data that it guards must be consistent at any
    time."""
    lock: Any = threading.RLock() if reentrant else threading.Lock()
    if hasattr(os, "register_at_fork"):  # other systems cannot reset locks
        after_fork(lock._at_fork_reinit)
    return lock  # type: ignore[no-any-return]


def after_fork(action: Callable[[], Any]) -> None:
    """Have ``action`` called first in every forked process, if the system can fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


class _Here:
    threads_lost = False


def lose_threads() -> None:
    """Record that this forked process lacks its parent's threads. Code that divides kernels among
    threads calls this in the child."""
    _Here.threads_lost = True


def threads_here(wanted: int) -> int:
    """Return how many threads a kernel that may use ``wanted`` of them computes with in this process."""
    return 1 if _Here.threads_lost else wanted


@cache
def fork_between_compilations() -> None:
    """Make every later fork wait, for a few seconds at most, until no thread compiles with numba. In the
    child, the locks of numba and LLVM would otherwise be held forever, and what they guard be left half
    done. Does nothing for a version of numba that has its locks elsewhere."""
    numbas = getattr(sys.modules.get("numba.core.compiler_lock"), "global_compiler_lock", None)
    llvms = getattr(getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None), "_lock", None)
    for lock in (llvms, numbas):  # the last registered is called first: the order in which threads lock
        if lock is not None and hasattr(os, "register_at_fork"):
            give_back = _leaving(lock)
            os.register_at_fork(
                before=lock.__enter__, after_in_parent=give_back, after_in_child=give_back
            )


def _leaving(lock: Any) -> Callable[[], None]:
    return lambda: lock.__exit__(None, None, None)
