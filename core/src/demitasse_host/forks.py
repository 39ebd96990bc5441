"""What threads hold while another one forks the process, and nobody gives back in the child."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any


def process_lock(*, reentrant: bool = False) -> threading.Lock:
    """A lock that is the process's, of a module: a process that was forked finds it free, whichever
    thread of its parent's held it, which is not there. What it guards must be whole at any time."""
    lock: Any = threading.RLock() if reentrant else threading.Lock()
    if hasattr(os, "register_at_fork"):  # elsewhere locks cannot be made anew
        after_fork(lock._at_fork_reinit)
    return lock  # type: ignore[no-any-return]


def after_fork(action: Callable[[], Any]) -> None:
    """Have something done first in every process that is forked, where the system forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


class _Here:
    threads_lost = False


def lose_threads() -> None:
    """Told in a forked process by who shares kernels' work among threads: they are its parent's."""
    _Here.threads_lost = True


def threads_here(wanted: int) -> int:
    """With how many threads a kernel that may use so many computes in this process."""
    return 1 if _Here.threads_lost else wanted


@cache
def fork_between_compilations() -> None:
    """From now on a fork waits until no thread has numba compile, for some seconds at most: numba's
    lock, and LLVM's, would be held for ever in the child, and what they guard left half made. Another
    numba that has them elsewhere is left alone."""
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
