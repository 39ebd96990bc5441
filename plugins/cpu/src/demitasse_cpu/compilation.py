"""Compiles the loops that kernels have bound but nobody has called yet, all together and in several
processes.

A net that is new to a machine needs some fifty loops. Each takes half a second to compile, most of it in
numba's Python code, so threads do not help. If numba can cache compiled code on disk, helper processes
(``compile_helper``) compile some of the loops, and this process reads them from the cache.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import after_fork, cache_folder, compile_once, locked
from demitasse_cpu.compile_helper import told

log = logging.getLogger("demitasse.cpu")

_Key = tuple[Any, ...]
_Wanted = list[tuple[_Key, tuple[Any, ...]]]
"""The argument types for which a loop is wanted, each with its key."""

_ADDRESSES: dict[_Key, int] = {}
"""Addresses of compiled loops, by what numba would compile them for. Asking numba takes 70 us, and most
loops are bound many times with arguments of the same types."""

_WANTED: dict[_Key, tuple[Any, tuple[Any, ...]]] = {}
_FAILURES: dict[_Key, tuple[Exception, Any, tuple[Any, ...]]] = {}
"""The loops that could not be compiled. The error is raised when somebody asks for the loop's
address."""

_PATIENCE = 60.0
"""How long to wait for a helper to finish a loop, in seconds, before it is killed. No loop takes as long
as ten seconds, but a helper may have been stopped."""

_MOST = 7
"""The maximum number of helpers. More would have nothing to do, because the longest loops take most of
the time."""


def want(loop: Any, arguments: tuple[Any, ...]) -> _Key:
    """Request that a loop is compiled for arguments of these types at the next ``settle``. Return the
    key to pass to ``address``."""
    key = loop, *map(_kind, arguments)
    if not any(key in known for known in (_ADDRESSES, _FAILURES, _WANTED)):
        from numba import typeof

        _WANTED[key] = loop, tuple(map(typeof, arguments))
    return key


def address(key: _Key) -> int:
    """Return the address of a loop that was requested with ``want``, and compile it first if need be.
    Raise the exception that numba raised if it could not be compiled."""
    if key not in _ADDRESSES:
        settle()
    if key in _FAILURES:
        error, *wanted = _FAILURES.pop(key)
        _WANTED[key] = wanted[0], wanted[1]  # memory or disk space may be available another time
        raise error
    return _ADDRESSES[key]


def settle() -> None:
    """Compile all requested loops, or read them from disk. If several processes request the same loops,
    as the ranks of a run do, each compiles loops that no other process is working on."""
    with _helpers.settling:
        loops: dict[Any, _Wanted] = {}
        for key, (loop, types) in list(_WANTED.items()):
            loops.setdefault(loop, []).append((key, types))
        # One process compiles a loop for all its types, so that what they have in common is compiled
        # once.
        left = deque(each for each in loops.items() if not _got(*each, _read))
        others = list[tuple[Any, _Wanted]]()
        if len(left) > 1:
            words = "%d loops are compiled because they are new to this machine, and kept on disk"
            log.info(words, len(left))
        with _helpers.taking(left) as done:
            others += [each for each in _taken(left) if not _got(*each, compile_once)]
        for each in others + done:
            _got(*each, _compile_anyway)


def _taken(left: deque[tuple[Any, _Wanted]]) -> Iterator[tuple[Any, _Wanted]]:
    """Yield the jobs from the front of ``left``, while others take jobs from its end."""
    while left:
        with contextlib.suppress(IndexError):  # another thread took the last one
            yield left.popleft()


def _read(loop: Any, types: tuple[Any, ...]) -> bool:
    return compile_once(loop, types, read_only=True)


def _compile_anyway(loop: Any, types: tuple[Any, ...]) -> bool:
    loop.compile(types)  # compiles it itself if another process takes too long
    return True


def _got(loop: Any, wanted: _Wanted, get: Callable[[Any, tuple[Any, ...]], bool]) -> bool:
    """``get`` a loop for all the given types. Return False if it could not be had for one of them."""
    for key, types in wanted:
        try:
            if not get(loop, types):
                return False
            compiled = loop.overloads[types]
            name = compiled.fndesc.llvm_func_name
            _ADDRESSES[key] = compiled.library.get_pointer_to_function(name)
        except Exception as error:  # noqa: BLE001 - raised for who calls it, and not for who settles
            _FAILURES[key] = error, loop, types
        _WANTED.pop(key, None)
    return True


def _kind(value: Any) -> Any:
    """Return what determines the numba type of an argument, or something finer."""
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.ndim, value.flags.num
    if isinstance(value, tuple):
        return type(value), *map(_kind, value)
    if type(value) is int and not -(2**63) <= value < 2**63:
        return value
    return type(value)


class _Helpers:
    """The processes that help this one. Each ends by itself once it has not been needed for a while.

    Each costs 200 MB and the 1 s that Python and numba take to start.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._ready = set[int]()  # the ids of those that have started up
        self._of = os.getpid()
        self.settling = threading.RLock()
        """Held by the thread that runs ``settle``."""

        atexit.register(self._end)

    def alive(self) -> list[subprocess.Popen[str]]:
        """Return the running helpers. A forked process has none, because they belong to its parent."""
        if self._of != os.getpid():
            return []
        for process in [each for each in self._processes if each.poll() is not None]:
            _close(process)
            self._processes.remove(process)
            self._ready.discard(process.pid)
        return self._processes

    @contextlib.contextmanager
    def taking(self, left: deque[tuple[Any, _Wanted]]) -> Iterator[list[tuple[Any, _Wanted]]]:
        """Have the helpers take loops from the end of ``left`` as long as there are any. Yield a list
        which, when the block has ended, contains the loops that they took, including any that could not
        be compiled."""
        done: list[tuple[Any, _Wanted]] = []
        with contextlib.ExitStack() as stack:
            count = min(_MOST, len(left) - 1)
            processes = self._started(min(count, _free(stack) - 1)) if count > 0 else []
            threads = [
                threading.Thread(target=self._feed, args=(process, left, done), daemon=True)
                for process in processes
            ]
            try:
                for thread in threads:
                    thread.start()
                yield done
            except BaseException:
                left.clear()
                self._end()
                raise
            finally:
                for process, thread in zip(processes, threads, strict=True):
                    thread.join(_PATIENCE)
                    if thread.is_alive():
                        process.kill()
                        thread.join()

    def _started(self, count: int) -> list[subprocess.Popen[str]]:
        """Return ``count`` helpers, or fewer if the system has no more processes or memory for them."""
        with contextlib.suppress(OSError):
            while len(self.alive()) < count and self._of == os.getpid():
                self._processes.append(_helper())
        return self.alive()[: max(count, 0)]

    def _feed(
        self,
        helper: subprocess.Popen[str],
        left: deque[tuple[Any, _Wanted]],
        done: list[tuple[Any, _Wanted]],
    ) -> None:
        """Have a helper compile loops from the end of ``left``, one after the other, until none is left.
        It gets none before it has started up, which takes as long as compiling a few."""
        assert helper.stdin is not None and helper.stdout is not None
        with contextlib.suppress(OSError, IndexError):  # the helper has ended, or no loop is left
            while helper.pid not in self._ready:
                if not left:
                    return
                if select.select([helper.stdout], [], [], 0.02)[0]:
                    if not helper.stdout.readline():
                        return
                    self._ready.add(helper.pid)
            while True:
                done.append(left.pop())
                job = _job(*done[-1])
                if job is None:
                    continue
                helper.stdin.write(job + "\n")
                helper.stdin.flush()
                if not helper.stdout.readline():
                    return

    def _end(self) -> None:
        for process in self.alive():
            process.kill()
            process.wait()
        self.alive()


_helpers = _Helpers()


# In a forked process, a lock that another thread held would never be released.
after_fork(lambda: setattr(_helpers, "settling", threading.RLock()))


def _close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # written to the pipe and never read
            if pipe is not None:
                pipe.close()


def _helper() -> subprocess.Popen[str]:
    """Start a helper in a session of its own, so that a signal that interrupts this process does not
    interrupt the helper. Raises OSError."""
    program = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        "from demitasse_cpu.compile_helper import serve; serve()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, json.dumps([*map(str, sys.path)])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def _free(stack: contextlib.ExitStack) -> int:
    """Return the number of processors that may compile until ``stack`` ends. It is 1 if another process,
    such as another rank of a run, has helpers at work, because they would be in each other's way."""
    if not _is_python(sys.executable):
        return 1
    try:
        folder = cache_folder("cpu")
        folder.mkdir(parents=True, exist_ok=True)
        if not stack.enter_context(locked(folder / "compiling.lock", wait=False)):
            return 1
    except (OSError, RuntimeError):  # no folder that can be written to
        return 1
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(processors or 1, int(threads) if threads.isdecimal() else processors or 1)


def _is_python(executable: str | None) -> bool:
    """Return whether a program is Python itself. An application that embeds Python would start a second
    time."""
    return Path(executable or "").name.startswith("python")


def _job(loop: Any, wanted: _Wanted) -> str | None:
    """Return the line to send to a helper, or None for a loop that a helper could not find or could not
    cache."""
    module, name = loop.__module__, loop.__name__
    found: Any = getattr(sys.modules.get(module), name, ())
    if found is not loop or not loop.stats.cache_path:
        return None
    try:
        return json.dumps([module, name, [[*map(told, types)] for _, types in wanted]])
    except ValueError:
        return None
