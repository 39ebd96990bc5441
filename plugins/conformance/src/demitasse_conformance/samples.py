"""Sources of samples: one order, however it is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_conformance.promises import hold

if TYPE_CHECKING:
    from demitasse import DataSource

Runs = list[dict[str, np.ndarray]]


def check_source(source: DataSource, count: int = 7) -> None:
    """Hold a source to its order: one stream of runs of ``count`` samples, two that share each run, and
    one that is opened later read the same samples, through the end of an epoch. Raises
    BrokenPromiseError."""
    runs, half = 2 * source.size // count + 2, count // 2
    whole = _read(source, 0, count, count, runs)
    first = _read(source, 0, half, count, runs)
    second = _read(source, half, count - half, count, runs)
    later = _read(source, count, count, count, runs - 1)
    again = _read(source, 0, count, count, 1)
    for name in source.fields:
        for number, batch in enumerate(whole):
            shared = np.concatenate([first[number][name], second[number][name]])
            about = f"{name} of samples {number * count} to {(number + 1) * count}"
            _same(batch[name], shared, f"{about} differs where two streams share each run")
            if number:
                _same(
                    batch[name], later[number - 1][name], f"{about} differs in a stream from {count} on"
                )
            else:
                _same(batch[name], again[0][name], f"{about} differs in a second stream")


def _read(source: DataSource, first: int, count: int, step: int, runs: int) -> Runs:
    stream = source.stream(first, count, step)
    taken = []
    try:
        hold(stream.cursor == first, f"a stream from {first} has cursor {stream.cursor}")
        for _ in range(runs):
            fields = source.fields.items()
            out: dict[str, Any] = {name: np.empty((count, *f.shape), f.dtype) for name, f in fields}
            stream.read(out)
            taken.append(out)
        reached = first + runs * step
        hold(
            stream.cursor == reached,
            f"after {runs} runs a stream from {first} has cursor {stream.cursor}, not {reached}",
        )
    finally:
        stream.close()
    return taken


def _same(one: np.ndarray, other: np.ndarray, wrong: str) -> None:
    hold(one.tobytes() == other.tobytes(), wrong)
