"""Candidates that take as long as they say, by a clock that only they advance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import PLAIN, Candidate, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_tuning import cache, tuner
from demitasse_tuning.tuner import CandidateTuner


class Block:
    """A block of memory that tells its allocator when it is released."""

    def __init__(self, allocator: CountingAllocator, nbytes: int) -> None:
        self.nbytes, self._allocator = nbytes, allocator
        self._bytes = np.zeros(nbytes, np.uint8)

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
        assert offset + size <= self.nbytes
        return self._bytes[offset : offset + size].view(dtype).reshape(tuple(shape))

    def close(self) -> None:
        self._allocator.held -= self.nbytes


@dataclass
class CountingAllocator:
    """Counts memory: allocated in total, held now, and most held at the same time."""

    space: str = "host"
    allocations: int = 0
    bytes: int = 0
    held: int = 0
    peak: int = 0
    room: float = float("inf")

    def allocate(self, nbytes: int) -> Block:
        if self.held + nbytes > self.room:
            raise MemoryError(f"asked for {nbytes}")
        self.allocations += 1
        self.bytes += nbytes
        self.held += nbytes
        self.peak = max(self.peak, self.held)
        return Block(self, nbytes)


@dataclass
class Bench:
    """Fake kernels on a fake clock. ``calls`` lists which ran, in order, ``bound`` their arrays. Their
    threads have waited for the part ``busy`` of the time that they take."""

    now: float = 0.0
    busy: float = 0.0
    calls: list[str] = field(default_factory=list)
    bound: dict[str, tuple[list[Any], list[Any], Any]] = field(default_factory=dict)
    allocator: CountingAllocator = field(default_factory=CountingAllocator)

    def clock(self) -> float:
        return self.now

    def waits(self) -> dict[str, float]:
        return {"1": 9.0, "2": self.busy * self.now}

    def kernel(
        self,
        name: str,
        *milliseconds: float,
        layouts: tuple[Layout, ...] = (),
        outputs: tuple[Layout, ...] = (),
        workspace: int = 0,
        error: Exception | None = None,
        binding: float = 0.0,
        prepare: Callable[[], None] | None = None,
    ) -> Candidate:
        """Return a candidate whose calls take these ``milliseconds`` in turn, then always the last."""

        def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
            self.bound[name] = (inputs, outputs, workspace)
            self.now += binding / 1e3
            taken = 0

            def work() -> None:
                nonlocal taken
                if error is not None:
                    raise error
                self.calls.append(name)
                self.now += milliseconds[min(taken, len(milliseconds) - 1)] / 1e3
                taken += 1

            if prepare is not None:
                vars(work)["prepare"] = prepare
            return work

        return Candidate(name, bind, layouts, outputs, workspace)

    def tuner(self, **options: Any) -> CandidateTuner:
        versions = {"fast": "1.0", "other": "1"}
        return CandidateTuner(self.allocator, versions, options, self.clock, self.waits)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def make_bench() -> type[Bench]:
    """Return the class, for tests that need several benches."""
    return Bench


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a cache folder of the test's own, about which no message was given yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache, "_said", set())
    monkeypatch.setattr(tuner, "_tried_here", set())
    yield tmp_path / "home"
    for unsaved in list(cache._unsaved):
        unsaved.save()


@pytest.fixture(autouse=True)
def nothing_is_tiny(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let small operations be tried, as tests request them; in users' plans they are not. Return the
    number of bytes from which those are tried."""
    usual = tuner.TINY
    for name in ("TINY", "SMALL"):
        monkeypatch.setattr(tuner, name, 0)
    return usual


@pytest.fixture
def relu() -> Callable[..., Request]:
    """Return a function that makes a request for the positive part of ``count`` numbers."""

    def request(count: int = 64, threads: int = 1, simulated: bool = False, **fields: Any) -> Request:
        spec = TensorSpec((count,), "float32")
        place = Place("machine", threads=threads, simulated=simulated)
        return Request(VOCABULARY["relu"], (spec,), (spec,), {}, place, **fields)

    return request


@pytest.fixture(scope="session")
def convolution() -> Callable[..., Request]:
    """Return ``convolution(direction, inputs, outputs, ...)``: a request for a 3x3 convolution of 8
    images of 16 x 32 x 32 to 32 channels, with some operands in given layouts."""

    def request(
        direction: str = "",
        inputs: Sequence[Layout] = (),
        outputs: Sequence[Layout] = (),
        threads: int = 1,
        precision: str = "f32",
    ) -> Request:
        shapes = {"x": (8, 16, 32, 32), "w": (32, 16, 3, 3), "b": (32,), "y": (8, 32, 32, 32)}
        operation = VOCABULARY[f"convolution{direction}"]
        given, made = (
            tuple(
                TensorSpec(shapes[operand.name.removeprefix("d")], "float32", layout or PLAIN)
                for operand, layout in zip_longest(operands, layouts)
            )
            for operands, layouts in ((operation.inputs, inputs), (operation.outputs, outputs))
        )
        attributes = {"kernel": (3, 3), "stride": (1, 1), "pad": (1, 1)}
        return Request(operation, given, made, attributes, Place("machine", threads=threads), precision)

    return request
