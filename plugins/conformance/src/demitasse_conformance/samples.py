"""Checks of sample sources: the order is the same, however it is divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_conformance.promises import hold

if TYPE_CHECKING:
    from demitasse import DataSource

Run = dict[str, np.ndarray]
RUNS = 8
"""The number of runs compared at the beginning and around the end of an epoch; a set may be large."""
LARGEST = 64 << 20
"""The size in bytes up to which whole epochs of a set are compared."""


def check_source(source: DataSource, count: int = 7) -> None:
    """Check the order of a source, at the beginning and around the end of an epoch. One stream of runs
    of ``count`` samples, two streams that share each run, a stream that starts later and a second stream
    must all read the same samples. Raises BrokenPromiseError."""
    around_the_end = max(0, (source.size // count - RUNS // 2) * count)
    for first in dict.fromkeys((0, around_the_end)):
        half = count // 2
        streams = (
            _runs(source, first, count, count),
            _runs(source, first, half, count),
            _runs(source, first + half, count - half, count),
            _runs(source, first, count, count),
        )
        later = _runs(source, first + count, count, count)
        for number, (whole, front, back, again) in enumerate(zip(*streams, strict=True)):
            start = first + number * count
            for name, given in whole.items():
                about = f"{name} of samples {start} to {start + count}"
                shared = np.concatenate([front[name], back[name]])
                _same(given, shared, f"{about} differs where two streams share each run")
                _same(given, again[name], f"{about} differs in a second stream")
            if number:
                for name, given in next(later).items():
                    about = f"{name} of samples {start} to {start + count}"
                    _same(whole[name], given, f"{about} differs in a stream from {first + count} on")


def check_epochs(source: DataSource) -> None:
    """Check the order of epochs of a source without shuffling: sample number ``size`` is the first one
    again. Raises BrokenPromiseError."""
    for start in {0, source.size // 2}:
        one, other = (next(_runs(source, at, 2, 2)) for at in (start, start + source.size))
        for name, given in one.items():
            about = f"{name} of sample {start + source.size} differs from that of sample {start}"
            _same(given, other[name], f"{about}, of {source.size} that there are")


def check_shuffling(opened: Callable[[int], DataSource], plain: DataSource) -> bool:
    """Check the shuffling of a source that ``opened`` opens with a seed: the same seed must give the
    same order, another seed or epoch another order, and each epoch must have each sample of ``plain``
    once. Return whether this could be checked, which it cannot with fewer than ten different samples or
    a large set. Raises BrokenPromiseError."""
    bytes_ = sum(int(np.prod(f.shape)) * np.dtype(f.dtype).itemsize for f in plain.fields.values())
    if plain.size < 10 or bytes_ * plain.size > LARGEST:
        return False
    kept = _epochs(plain)[0]
    if len(set(kept)) < 10:
        return False  # among so few different samples, orders may be equal by chance
    orders = [_epochs(opened(seed)) for seed in (1, 1, 2)]
    hold(orders[0] == orders[1], "shuffled twice by one seed, the orders differ")
    hold(orders[0] != orders[2], "shuffled by two seeds, the orders are the same")
    hold(orders[0][0] != orders[0][1], "shuffled, two epochs have the same order")
    for number, epoch in enumerate(orders[0]):
        hold(
            sorted(epoch) == sorted(kept),
            f"shuffled, epoch {number} does not have each of the {plain.size} samples once",
        )
    return True


def _epochs(source: DataSource) -> tuple[list[bytes], list[bytes]]:
    """Return the bytes of each sample in the first two epochs."""
    runs = _runs(source, 0, source.size, source.size, 2)
    first, second = (
        [b"".join(array[i].tobytes() for array in run.values()) for i in range(source.size)]
        for run in runs
    )
    source.close()
    return first, second


def _runs(source: DataSource, first: int, count: int, step: int, runs: int = RUNS) -> Iterator[Run]:
    stream = source.stream(first, count, step)
    try:
        hold(stream.cursor == first, f"a stream from {first} has cursor {stream.cursor}")
        for number in range(1, runs + 1):
            fields = source.fields.items()
            out: dict[str, Any] = {name: np.empty((count, *f.shape), f.dtype) for name, f in fields}
            stream.read(out)
            reached = first + number * step
            hold(
                stream.cursor == reached,
                f"after {number} runs a stream from {first} has cursor {stream.cursor}, not {reached}",
            )
            yield out
    finally:
        stream.close()


def _same(one: np.ndarray, other: np.ndarray, wrong: str) -> None:
    hold(one.tobytes() == other.tobytes(), wrong)
