"""Samples that a filler makes: one constant batch, or new random ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import numpy as np

from demitasse import DataError, Field, RandomStream
from demitasse_datasets.samples import Samples

DRAWS = 16
"""How many arrays a filler may draw per batch before its numbers repeat in the next batch."""
LARGEST = 1 << 33


class GeneratedSamples:
    """Batches of ``shape`` made by ``filler(shape, stream)``, as one ``field``. Batch n of the endless
    order begins at its own place in a random stream, so that the samples are the same however the work
    is divided. A filler that draws nothing is called once."""

    def __init__(
        self,
        field: str,
        filler: Callable[[tuple[int, ...], RandomStream], np.ndarray],
        shape: tuple[int, ...],
        seed: int,
        stream: int,
    ) -> None:
        if not shape or min(shape) < 1 or _count(shape) > LARGEST:
            raise DataError(f"cannot make samples of shape {shape}")
        self.name, self.size = "generated samples", shape[0]
        self.fields: Mapping[str, Field] = {field: Field(shape[1:], "float32")}
        self._field = field
        self._filler, self._shape, self._seed, self._stream = filler, shape, seed, stream
        self._batches: dict[int, np.ndarray] = {}
        self._constant: np.ndarray | None = None
        self._lock = threading.Lock()

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        done = 0
        while done < len(numbers):
            batch, place = divmod(first + done, self.size)
            run = min(len(numbers) - done, self.size - place)
            out[self._field][done : done + run] = self._batch(batch)[place : place + run]
            done += run

    def _batch(self, number: int) -> np.ndarray:
        with self._lock:
            if self._constant is not None:
                return self._constant
            if number not in self._batches:
                stream = RandomStream(self._seed, self._stream)
                stream.calls = start = number * DRAWS - 1
                made = np.asarray(self._filler(self._shape, stream), np.float32)
                if stream.calls == start:
                    self._constant = made
                    return made
                while len(self._batches) > 1:
                    del self._batches[next(iter(self._batches))]
                self._batches[number] = made
            return self._batches[number]

    @property
    def steady(self) -> bool:
        """Whether all batches are the same, so that writing them once is enough."""
        self._batch(0)
        return self._constant is not None


class SteadyStream:
    """A stream of the same samples over and over. It writes them to an array once, and leaves them
    there, even if someone has since overwritten them. Implements ``demitasse.Stream``."""

    def __init__(self, samples: Samples, first: int, count: int, step: int) -> None:
        self._samples, self.cursor, self._count, self._step = samples, first, count, step
        self._written: set[int] = set()

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the samples to arrays that do not have them yet, and advance the cursor."""
        for name, array in out.items():
            place = array.__array_interface__["data"][0]
            if place not in self._written:
                run = {name: np.empty(array.shape, np.float32)}
                self._samples.gather(np.arange(self._count), run, self.cursor)
                np.copyto(array, run[name], casting="unsafe")
                self._written.add(place)
        self.cursor += self._step

    def close(self) -> None:
        """Do nothing: nothing is read ahead."""


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
