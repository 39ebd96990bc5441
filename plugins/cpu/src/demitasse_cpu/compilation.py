"""Loops that kernels have bound and nobody has called yet: compiled together, by several processes.

A net that is new to a machine takes some fifty loops, half a second each, most of it in numba's Python:
so threads do not help. Where numba keeps what it compiles on disk, helpers (``compile_helper``) compile
some of what is wanted, and it is read from there.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import after_fork, cache_folder, compile_once, locked
from demitasse_cpu.compile_helper import told

log = logging.getLogger("demitasse.cpu")

_Key = tuple[Any, ...]
_Wanted = list[tuple[_Key, tuple[Any, ...]]]
"""Types for which one loop is wanted, with their keys."""

_ADDRESSES: dict[_Key, int] = {}
"""Where loops are, by what numba would compile them for. To ask numba takes 70 us, and most loops are
bound many times with arguments of the same types."""

_WANTED: dict[_Key, tuple[Any, tuple[Any, ...]]] = {}
_FAILURES: dict[_Key, tuple[Exception, Any, tuple[Any, ...]]] = {}
"""What could not be compiled, until somebody calls it."""

_PATIENCE = 60.0
"""Seconds that a helper may take for a loop, of which none takes ten: it may be stopped."""

_MOST = 7
"""Helpers at most: more have nothing to do, as the longest loops take most of the time."""


def want(loop: Any, arguments: tuple[Any, ...]) -> _Key:
    """Have a loop compiled for arguments of such types when next something is settled; the key by which
    ``address`` knows it."""
    key = loop, *map(_kind, arguments)
    if not any(key in known for known in (_ADDRESSES, _FAILURES, _WANTED)):
        from numba import typeof

        _WANTED[key] = loop, tuple(map(typeof, arguments))
    return key


def address(key: _Key) -> int:
    """Where what was wanted is. Raises what numba raised when it compiled it."""
    if key not in _ADDRESSES:
        settle()
    if key in _FAILURES:
        error, *wanted = _FAILURES.pop(key)
        _WANTED[key] = wanted[0], wanted[1]  # there may be memory, or room on the disk, another time
        raise error
    return _ADDRESSES[key]


def settle() -> None:
    """Compile all that is wanted, or read it from disk. Of processes that want the same, as ranks of a
    run, each compiles what no other one is at."""
    with _helpers.settling:
        loops: dict[Any, _Wanted] = {}
        for key, (loop, types) in list(_WANTED.items()):
            loops.setdefault(loop, []).append((key, types))
        # One process compiles a loop for all types: what is common to these is compiled once.
        left = deque(loops.items())
        others = list[tuple[Any, _Wanted]]()
        for each in _taken(left):
            before = _misses(each[0])
            if not _compiled(*each):
                others.append(each)
            elif len(left) > 1 and _misses(each[0]) > before:
                words = "%d more loops are compiled where they are new to this machine, and kept on disk"
                log.info(words, len(left))
                with _helpers.taking(left) as done:
                    others += [each for each in _taken(left) if not _compiled(*each)]
                others += done
        for each in others:
            _compiled(*each, waiting=True)


def _taken(left: deque[tuple[Any, _Wanted]]) -> Iterator[tuple[Any, _Wanted]]:
    """One after the other, while others take from the end."""
    while left:
        with contextlib.suppress(IndexError):  # somebody took the last one
            yield left.popleft()


def _misses(loop: Any) -> int:
    """How often a loop was compiled and not read."""
    return sum(loop.stats.cache_misses.values())


def _compiled(loop: Any, wanted: _Wanted, waiting: bool = False) -> bool:
    """Have a loop compiled; False where another process is at it, unless that is waited for."""
    for key, types in wanted:
        try:
            if waiting:
                loop.compile(types)  # after a while though the other one still is at it
            elif not compile_once(loop, types):
                return False
            compiled = loop.overloads[types]
            name = compiled.fndesc.llvm_func_name
            _ADDRESSES[key] = compiled.library.get_pointer_to_function(name)
        except Exception as error:  # noqa: BLE001 - raised for who calls it, and not for who settles
            _FAILURES[key] = error, loop, types
        _WANTED.pop(key, None)
    return True


def _kind(value: Any) -> Any:
    """What numba takes an argument's type from, or more."""
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.ndim, value.flags.num
    if isinstance(value, tuple):
        return type(value), *map(_kind, value)
    if type(value) is int and not -(2**63) <= value < 2**63:
        return value
    return type(value)


class _Helpers:
    """The processes that help this one. Each ends by itself when it was not needed for a while.

    They cost what Python and numba take to start, 1 s, and 200 MB each."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._of = os.getpid()
        self.settling = threading.RLock()
        """Held by the thread that has things compiled."""

        atexit.register(self._end)

    def alive(self) -> list[subprocess.Popen[str]]:
        """Those that there are; none in a process that was forked, whose parent has them."""
        if self._of != os.getpid():
            return []
        for process in [each for each in self._processes if each.poll() is not None]:
            _close(process)
            self._processes.remove(process)
        return self._processes

    @contextlib.contextmanager
    def taking(self, left: deque[tuple[Any, _Wanted]]) -> Iterator[list[tuple[Any, _Wanted]]]:
        """Have them take loops from the end of ``left`` as long as there are any. When the block has
        ended, the list that this gives has those that they took, also one that could not be compiled."""
        done: list[tuple[Any, _Wanted]] = []
        with contextlib.ExitStack() as stack:
            processes = self._started(min(_MOST, len(left), _free(stack) - 1))
            threads = [
                threading.Thread(target=_feed, args=(process, left, done), daemon=True)
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
        """As many, or fewer where the system has no more processes or memory for them."""
        with contextlib.suppress(OSError):
            while len(self.alive()) < count and self._of == os.getpid():
                self._processes.append(_helper())
        return self.alive()[: max(count, 0)]

    def _end(self) -> None:
        for process in self.alive():
            process.kill()
            process.wait()
        self.alive()


_helpers = _Helpers()


# In a forked process nobody gives the lock back that another thread may have had.
after_fork(lambda: setattr(_helpers, "settling", threading.RLock()))


def _close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was written to it and not read
            if pipe is not None:
                pipe.close()


def _helper() -> subprocess.Popen[str]:
    """A new one, in a session of its own: what interrupts this process does not interrupt it. Raises
    OSError."""
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


def _feed(
    helper: subprocess.Popen[str],
    left: deque[tuple[Any, _Wanted]],
    done: list[tuple[Any, _Wanted]],
) -> None:
    """Have a helper take from the end of ``left`` what it can, one after the other."""
    assert helper.stdin is not None and helper.stdout is not None
    with contextlib.suppress(OSError, IndexError):  # it has ended; there is no more
        while True:
            done.append(left.pop())
            job = _job(*done[-1])
            if job is None:
                continue
            helper.stdin.write(job + "\n")
            helper.stdin.flush()
            if not helper.stdout.readline():
                return


def _free(stack: contextlib.ExitStack) -> int:
    """Processors for this until ``stack`` ends; 1 where a process beside this one has helpers at work,
    as another rank of a run may: they would be in each other's way."""
    if not _is_python(sys.executable):
        return 1
    try:
        folder = cache_folder("cpu")
        folder.mkdir(parents=True, exist_ok=True)
        if not stack.enter_context(locked(folder / "compiling.lock", wait=False)):
            return 1
    except (OSError, RuntimeError):  # no folder that can be written
        return 1
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(processors or 1, int(threads) if threads.isdecimal() else processors or 1)


def _is_python(executable: str | None) -> bool:
    """Whether a program is Python itself, and not an application that has it within: that would start
    once more."""
    return Path(executable or "").name.startswith("python")


def _job(loop: Any, wanted: _Wanted) -> str | None:
    """A line for a helper; None for what it cannot find, or could not keep."""
    module, name = loop.__module__, loop.__name__
    found: Any = getattr(sys.modules.get(module), name, ())
    if found is not loop or not loop.stats.cache_path:
        return None
    try:
        return json.dumps([module, name, [[*map(told, types)] for _, types in wanted]])
    except ValueError:
        return None
