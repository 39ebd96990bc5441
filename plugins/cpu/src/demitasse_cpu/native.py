"""Work as tables of calls, which one compiled loop runs without the GIL, and the functions that compose
it."""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from demitasse import DataError, PlanError, Work, after_fork, lose_threads
from demitasse_cpu.compilation import address, settle, want
from demitasse_cpu.threads import together

_LONGEST = 64
_ROUNDS = 2000


class WrongError(Exception):
    """Raised by a compiled loop if a sample contains a number that it must not contain."""


class Call:
    """A loop with its arguments. ``prepare`` compiles it for their types; otherwise the first call does.
    If the loop raises WrongError, ``failed`` returns the error that says what is wrong with the
    samples."""

    def __init__(
        self, loop: Any, arguments: Sequence[Any], failed: Callable[[], DataError] | None = None
    ) -> None:
        self.join, self.prepare = _join, settle
        self.layer, self._failed = "", failed
        self.loop, self.arguments = loop, tuple(arguments)
        self._key = want(loop, self.arguments)
        self._alone: tuple[Callable[[], int], np.ndarray] | None = None
        _compile_walk()

    @property
    def stages(self) -> tuple[tuple[Call]]:
        """The call as a single stage. It is not stored, because an object that refers to itself keeps
        its arrays alive until the garbage collector runs."""
        return ((self,),)

    def __call__(self) -> None:
        if self._alone is None:
            from demitasse_cpu.loops.calls import call

            self._alone = partial(call, (row := self.record()).ctypes.data), row
        if self._alone[0]() != 0:
            raise self.failure()

    def named(self, layer: str) -> None:
        """Name the layer in errors about samples."""
        self.layer = layer

    def failure(self) -> Exception:
        """Return the error for a call that failed."""
        if self._failed is None:
            return PlanError(f"compiled loop {self.loop.__name__} failed")
        error = self._failed()
        if self.layer:
            error.args = (f"layer {self.layer!r}: {error}",)
        return error

    def record(self) -> np.ndarray:
        """Return the address, width, words and numbers in the form that ``loops.calls`` reads, followed
        by the memory where the loop puts its result and an error."""
        words: list[int] = [0, 0]
        reals: list[float] = []
        for argument in self.arguments:
            _flatten(argument, words, reals)
        called = _record(address(self._key), words, reals)
        row = np.concatenate([called, np.zeros(_LONGEST // 8 + 1, np.int64)])
        row[2] = row.ctypes.data + 8 * called.size
        row[3] = row[2] + _LONGEST
        return row


class Foreign:
    """A C function that takes word-sized arguments and returns 0 unless it fails. ``label`` names it in
    errors, ``threads`` is the number of OpenMP threads that it may use, and ``held`` is an object that
    must live as long as the function may be called."""

    def __init__(
        self, label: str, address: int, words: Sequence[int], threads: int = 1, held: object = None
    ) -> None:
        self.join = _join
        self.label, self.address, self.words = label, address, tuple(words)
        self.threads, self.held, self._process = threads, held, os.getpid()
        self._function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * len(words))(address)

    @property
    def stages(self) -> tuple[tuple[Foreign]]:
        """The call as a single stage."""
        return ((self,),)

    def __call__(self) -> None:
        team = openmp()
        if team is None:
            status = self._function(*self.words)
        elif self.threads > 1 and self._process != os.getpid():
            raise PlanError(
                f"{self.label} was bound before this process was forked, and would wait for threads "
                f"that exist only in the parent: make the trainer or net in the process that runs it"
            )
        else:
            with team.using(self.threads):
                status = self._function(*self.words)
        if status != 0:
            raise PlanError(f"{self.label} failed with status {status}")

    def failure(self) -> Exception:
        """Return the error for a call that failed."""
        return PlanError(f"{self.label} failed")

    def record(self) -> np.ndarray:
        return _record(self.address, list(self.words), [])


def _record(address: int, words: list[int], reals: list[float]) -> np.ndarray:
    from demitasse_cpu.loops.calls import REALS, WIDTHS

    width = next((width for width in WIDTHS if width >= len(words)), None)
    if width is None or len(reals) > REALS:
        raise PlanError(
            f"a compiled loop takes {len(words)} words and {len(reals)} numbers; "
            f"at most {WIDTHS[-1]} and {REALS} can be passed"
        )
    padded = words + [0] * (width - len(words))
    bits = [struct.unpack("q", struct.pack("d", value))[0] for value in reals]
    return np.array([address, width, *padded, *bits, *[0] * (REALS - len(bits))], np.int64)


def _flatten(value: Any, words: list[int], reals: list[float]) -> None:
    """Append an argument to ``words`` or ``reals`` in the form in which numba passes it."""
    if isinstance(value, np.ndarray):
        words += [0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides]
    elif isinstance(value, tuple):
        for member in value:
            _flatten(member, words, reals)
    elif isinstance(value, bool | int | np.integer | np.bool_):
        words.append(int(value))
    elif isinstance(value, float):
        reals.append(value)
    else:
        raise PlanError(f"{value!r} ({type(value).__name__}) cannot be passed to a compiled loop")


class Native:
    """Stages that run one after the other. Each is a single call, or parts that a team of threads runs
    concurrently. If the system has OpenMP's library, all stages run in one call that does not hold the
    GIL."""

    def __init__(self, stages: Sequence[Sequence[Call | Foreign]]) -> None:
        self.join, self.prepare, self.stages = _join, settle, tuple(map(tuple, stages))
        foreign = [part.threads for stage in stages for part in stage if isinstance(part, Foreign)]
        self._threads = max(foreign, default=0)
        self._table: np.ndarray | None = None
        _compile_walk()

    @property
    def whole(self) -> bool:
        """Whether this runs as one call, which an interrupt cannot leave half done."""
        return (team := openmp()) is not None and not team.lost

    def __call__(self) -> None:
        team = openmp()
        if team is None or team.lost:
            for stage in self.stages:
                together(stage)()
            return
        if self._table is None:
            self._table = self._build(team)
        row = self._run(team.allowed(self._threads), team.settings, self._table, team.fork, self._share)
        if row != 0:
            raise self.stages[row - 1][0].failure()

    def named(self, layer: str) -> None:
        """Name the layer in errors about samples."""
        for part in itertools.chain(*self.stages):
            if isinstance(part, Call):
                part.named(layer)

    def _build(self, team: Team) -> np.ndarray:
        from demitasse_cpu.loops import calls

        self._held: list[np.ndarray] = []
        rows = []
        for stage in self.stages:
            records = [part.record() for part in stage]
            addresses = [record.ctypes.data for record in records]
            if len(stage) > 1:
                parts = np.array([team.number, team.size, 0, len(stage), *addresses], np.int64)
                records.append(parts)
            # Changing the size of the team would create it anew, which takes a hundred times as long as
            # a stage. If there are more parts than threads, the threads take them in turn.
            size = min(len(stage), team.processors)
            rows.append([calls.TEAM if len(stage) > 1 else calls.ONE, records[-1].ctypes.data, size])
            self._held += records
        table = np.array(rows, np.int64).reshape(-1, 3)
        self._run, self._share = calls.run, int(calls.share.address or 0)
        return table


@cache
def _compile_walk() -> None:
    """Have the loops that call others compiled along with the first kernel that is bound. If the first
    call waited for it (0.3 s, once on a machine), a tuner would take that kernel for a slow one."""
    from demitasse_cpu.loops import calls

    want(calls.call, (1,))
    if openmp() is not None:
        want(calls.run, (1, np.zeros(1, np.int64), np.zeros((1, 3), np.int64), 1, 1))


def _join(works: Sequence[Call | Foreign | Native]) -> Work:
    """Join pieces of work into one that runs them in order without returning to Python in between."""
    return works[0] if len(works) == 1 else Native([stage for work in works for stage in work.stages])


def at_once(parts: Sequence[Work]) -> Work:
    """Return work that runs all ``parts``, concurrently if threads are available. The parts must not
    depend on each other, and must give the same result whichever thread runs them."""
    if len(parts) == 1:
        return parts[0]
    calls = [part for part in parts if isinstance(part, Call)]
    return Native([calls]) if len(calls) == len(parts) else together(parts)


def in_order(stages: Sequence[Work]) -> Work:
    """Return work that runs ``stages`` one after the other."""
    native = [stage for stage in stages if isinstance(stage, Call | Foreign | Native)]
    if len(native) == len(stages):
        return _join(native)

    return _InOrder(stages)


class _InOrder:
    """Stages of which some are Python functions."""

    def __init__(self, stages: Sequence[Work]) -> None:
        self.prepare, self._stages = settle, tuple(stages)

    def __call__(self) -> None:
        for stage in self._stages:
            stage()


class Team:
    """OpenMP's threads, which are also the ones that oneDNN's kernels use, so the two never compete. The
    library is loaded as PyDLL, which keeps the GIL, because its functions take less time than releasing
    the GIL and waiting for it again."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        self.fork, self.number, self.size = (
            int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
            for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        )
        named = "omp_get_max_threads", "omp_get_dynamic", "omp_set_num_threads", "omp_set_dynamic"
        places = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in named]
        self.settings = np.array(places, np.int64)
        """Addresses of the functions that get and set the number of threads."""
        self.processors: int = library.omp_get_num_procs()
        self.most = min(int(library.omp_get_thread_limit()), 2**16)
        self._library, self.lost = library, False
        after_fork(self._lose)

    def allowed(self, threads: int) -> int:
        """Return ``threads``, or the largest number of threads allowed if that is less."""
        return 1 if self.lost else max(1, min(threads, self.most))

    @contextmanager
    def using(self, threads: int) -> Iterator[int]:
        """Let whatever this thread calls in the block use at most ``threads`` threads, and no fewer
        under other load, because oneDNN's kernels wait for as many threads as they were made for. The
        settings are restored afterwards."""
        threads = self.allowed(threads)
        before, varies = self._library.omp_get_max_threads(), self._library.omp_get_dynamic()
        self._library.omp_set_dynamic(0)
        self._library.omp_set_num_threads(threads)
        try:
            yield threads
        finally:
            self._library.omp_set_num_threads(before)
            self._library.omp_set_dynamic(varies)

    def _lose(self) -> None:
        """Mark the threads as lost: they do not exist in a forked process, and OpenMP would wait for
        them forever."""
        self.lost = True
        lose_threads()


@cache
def openmp() -> Team | None:
    """Return the system's OpenMP, or None if it has none. Python's threads then share the work."""
    try:
        with _patience():
            return Team(ctypes.PyDLL("libgomp.so.1"))
    except (OSError, AttributeError):
        return None


@contextmanager
def _patience() -> Iterator[None]:
    """Set for how long OpenMP's threads spin before they sleep; the library reads this when it is
    loaded. Its default of 300,000 rounds lasts longer than the time slice of another process. On two
    processors with a third busy thread, each stage of 5 us took up to 12 ms with the default, and takes
    0.2 ms with this value. A value that the user has set is kept."""
    given = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ)
    if not given:
        os.environ["GOMP_SPINCOUNT"] = str(_ROUNDS)
    try:
        yield
    finally:
        if not given:
            del os.environ["GOMP_SPINCOUNT"]
