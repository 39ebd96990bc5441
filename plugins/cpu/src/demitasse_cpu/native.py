"""Work as tables of calls: what runs from one compiled loop without the GIL, and what joins to it."""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from demitasse import DataError, PlanError, Work, after_fork, lose_threads
from demitasse_cpu.compilation import address, settle, want
from demitasse_cpu.threads import together

_LONGEST = 64
_ROUNDS = 2000


class WrongError(Exception):
    """What a compiled loop raises about numbers that no sample should have."""


class Call:
    """A loop with its arguments, compiled for their types by ``prepare``, else when it is first needed.
    One that raises WrongError, about the samples, says what is wrong with them by ``failed``."""

    def __init__(
        self, loop: Any, arguments: Sequence[Any], failed: Callable[[], DataError] | None = None
    ) -> None:
        self.join, self.prepare = _join, settle
        self.layer, self._failed = "", failed
        self.loop, self.arguments = loop, tuple(arguments)
        self._key = want(loop, self.arguments)

    @property
    def stages(self) -> tuple[tuple[Call]]:
        """It is one, alone. Not kept: what refers to itself holds its arrays until a collection."""
        return ((self,),)

    def __call__(self) -> Any:
        try:
            return self.loop(*self.arguments)
        except WrongError:
            raise self.failure() from None

    def named(self, layer: str) -> None:
        """Name the layer in errors about samples."""
        self.layer = layer

    def failure(self) -> Exception:
        """The error of a call that has failed."""
        if self._failed is None:
            return PlanError(f"compiled loop {self.loop.__name__} failed")
        error = self._failed()
        if self.layer:
            error.args = (f"layer {self.layer!r}: {error}",)
        return error

    def record(self) -> np.ndarray:
        """Address, width, words and numbers, as ``loops.calls`` reads them; behind them the places where
        the loop puts its result, and an error."""
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
    """A function of C with word-sized arguments, which returns 0 unless it fails. ``label`` names it
    in errors; ``threads`` is how many of OpenMP's it may use, ``held`` what must live as long as it
    may be called."""

    def __init__(
        self, label: str, address: int, words: Sequence[int], threads: int = 1, held: object = None
    ) -> None:
        self.join = _join
        self.label, self.address, self.words = label, address, tuple(words)
        self.threads, self.held, self._process = threads, held, os.getpid()
        self._function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * len(words))(address)

    @property
    def stages(self) -> tuple[tuple[Foreign]]:
        """It is one, alone."""
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
        """The error of a call that has failed."""
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
    """An argument as numba passes it."""
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
    """Stages that follow each other, each of one call or of parts that a team of threads does at once.
    Where the system has OpenMP's library, all run in one call that does not hold the GIL."""

    def __init__(self, stages: Sequence[Sequence[Call | Foreign]]) -> None:
        self.join, self.prepare, self.stages = _join, settle, tuple(map(tuple, stages))
        foreign = [part.threads for stage in stages for part in stage if isinstance(part, Foreign)]
        self._threads = max(foreign, default=0)
        self._table: np.ndarray | None = None
        _compile_walk()

    @property
    def whole(self) -> bool:
        """Whether it is one call, which no interrupt leaves half done."""
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
            # A team of another size would be made anew, which takes a hundred times as long as a stage;
            # parts beyond its size are taken in turn.
            size = min(len(stage), team.processors)
            rows.append([calls.TEAM if len(stage) > 1 else calls.ONE, records[-1].ctypes.data, size])
            self._held += records
        table = np.array(rows, np.int64).reshape(-1, 3)
        self._run, self._share = calls.run, int(calls.share.address or 0)
        return table


@cache
def _compile_walk() -> None:
    """Have what walks tables compiled with a kernel that is bound: a first call that waits for it, 0.3 s
    once on a machine, would look like a slow kernel's to a tuner."""
    if openmp() is not None:
        from demitasse_cpu.loops import calls

        want(calls.run, (1, np.zeros(1, np.int64), np.zeros((1, 3), np.int64), 1, 1))


def _join(works: Sequence[Call | Foreign | Native]) -> Work:
    """Works in line as one, with no Python between them."""
    return works[0] if len(works) == 1 else Native([stage for work in works for stage in work.stages])


def at_once(parts: Sequence[Work]) -> Work:
    """Work that is done when all ``parts`` are, at once where there are threads for it. The parts do
    not depend on each other, and give the same result whoever does them."""
    if len(parts) == 1:
        return parts[0]
    calls = [part for part in parts if isinstance(part, Call)]
    return Native([calls]) if len(calls) == len(parts) else together(parts)


def in_order(stages: Sequence[Work]) -> Work:
    """Work that does ``stages`` one after the other."""
    native = [stage for stage in stages if isinstance(stage, Call | Foreign | Native)]
    if len(native) == len(stages):
        return _join(native)

    return _InOrder(stages)


class _InOrder:
    """Stages of which some are Python's."""

    def __init__(self, stages: Sequence[Work]) -> None:
        self.prepare, self._stages = settle, tuple(stages)

    def __call__(self) -> None:
        for stage in self._stages:
            stage()


class Team:
    """OpenMP's threads: the ones that oneDNN's kernels use too, so that they never compete. Its
    functions take less time than to give the GIL up and wait for it again, so they keep it (PyDLL)."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        self.fork, self.number, self.size = (
            int(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0)
            for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        )
        named = "omp_get_max_threads", "omp_get_dynamic", "omp_set_num_threads", "omp_set_dynamic"
        places = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in named]
        self.settings = np.array(places, np.int64)
        """Where the functions are that say and set how many threads there may be."""
        self.processors: int = library.omp_get_num_procs()
        self.most = min(int(library.omp_get_thread_limit()), 2**16)
        self._library, self.lost = library, False
        after_fork(self._lose)

    def allowed(self, threads: int) -> int:
        """So many threads, or as many of them as there can be."""
        return 1 if self.lost else max(1, min(threads, self.most))

    @contextmanager
    def using(self, threads: int) -> Iterator[int]:
        """At most so many threads for what this thread calls, and not fewer because of other load:
        oneDNN's kernels wait for all for which they were made. As it was before, afterwards."""
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
        """In a forked process the threads are not there, and OpenMP would wait for them for ever."""
        self.lost = True
        lose_threads()


@cache
def openmp() -> Team | None:
    """The system's OpenMP, or None: then threads of Python's share the work."""
    try:
        with _patience():
            return Team(ctypes.PyDLL("libgomp.so.1"))
    except (OSError, AttributeError):
        return None


@contextmanager
def _patience() -> Iterator[None]:
    """How long OpenMP's threads look for work before they sleep, which its library reads when it is
    loaded. Its own default, 300,000 rounds, lasts longer than the system lets another process run: on
    two processors with a third busy thread each stage of 5 us took up to 12 ms, and 0.2 ms so. What the
    user has set holds."""
    given = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ)
    if not given:
        os.environ["GOMP_SPINCOUNT"] = str(_ROUNDS)
    try:
        yield
    finally:
        if not given:
            del os.environ["GOMP_SPINCOUNT"]
