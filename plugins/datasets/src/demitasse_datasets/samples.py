"""Decoded samples: the common protocol of all kinds of sources, and samples in arrays."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from demitasse import DataError, Field, host_array, process_lock
from demitasse_datasets.files import MappedFile


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Put ``what`` in front of the message of a DataError."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{what}: {error}") from error


class Samples(Protocol):
    """Samples by their number in the file (from 0), of which several can be fetched at once."""

    name: str
    fields: Mapping[str, Field]
    size: int

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        """Write the samples with these numbers into ``out``: an array of the stored type for every
        field. ``first`` is the number of the first one in the endless global order; the others follow
        it. Random draws for a sample depend on that number. Raises DataError, or any error of a reader,
        if a sample cannot be read."""


@runtime_checkable
class OwnShapes(Samples, Protocol):
    """Samples each of which may have its own shape; ``fields`` have the shapes of the first."""

    varies: bool
    """Whether shapes may vary."""

    def sample(self, number: int, place: int) -> dict[str, np.ndarray]:
        """Return a sample in its own size, by its number in the file; ``place`` is its number in the
        endless global order. Returns its fields, without a batch axis. Raises as ``gather`` does."""

    def where(self, number: int) -> str:
        """Say where a sample comes from, for messages."""


class ArraySamples:
    """Fields stored in arrays, one row per sample. The arrays are used, not copied. ``absent`` explains
    why fields are missing that samples of this kind usually have; ``files`` are those mapped by the
    arrays.

    Raises DataError if the arrays are not numeric, are empty, or differ in length.
    """

    def __init__(
        self,
        name: str,
        columns: Mapping[str, np.ndarray],
        absent: Mapping[str, str] | None = None,
        files: Sequence[MappedFile] = (),
    ) -> None:
        self.name, self._files = name, files
        self.absent = absent or {}
        self.columns = {field: _array(name, field, array) for field, array in columns.items()}
        if not self.columns:
            raise DataError(f'{name}: no fields; give arrays by name, {{"data": ..., "label": ...}}')
        for field, array in self.columns.items():
            if array.dtype.kind not in "biuf":
                raise DataError(
                    f"{name}: field {field!r} has element type {array.dtype} "
                    f"(valid: booleans, integers and floating point numbers)"
                )
            if array.ndim == 0:
                raise DataError(
                    f"{name}: field {field!r} is a single number; its first axis must be the samples"
                )
        lengths = {field: len(array) for field, array in self.columns.items()}
        first = next(iter(lengths))
        for field, length in lengths.items():
            if length != lengths[first]:
                raise DataError(
                    f"{name}: field {first!r} has {lengths[first]:,} samples, "
                    f"but field {field!r} has {length:,}; each sample must have both"
                )
        self.size = lengths[first]
        if self.size == 0:
            raise DataError(f"{name}: there are no samples: field {first!r} has length 0")
        self.fields: Mapping[str, Field] = {
            field: Field(array.shape[1:], array.dtype.name) for field, array in self.columns.items()
        }
        for field, array in self.columns.items():
            if array.size == 0:
                raise DataError(
                    f"{name}: the samples of field {field!r} are empty: their shape is {array.shape[1:]}"
                )

    @property
    def mapped(self) -> bool:
        """Whether some of the data is in mapped files, which are read when touched."""
        return any(_mapped(array) for array in self.columns.values())

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        for file in self._files:
            file.check()
        for field, array in out.items():
            self.into(field, array)(numbers)

    def into(self, field: str, out: np.ndarray) -> Callable[[np.ndarray], object]:
        """Return a function that writes the samples of given numbers into ``out``, which has the stored
        type."""
        array = self.columns[field]
        flags = array.flags
        if flags.c_contiguous and flags.aligned and array.dtype.isnative:
            # With mode="raise", take would use a buffer of its own.
            return partial(array.take, axis=0, out=out, mode="clip")

        def copy(numbers: np.ndarray) -> None:
            out[...] = array[numbers]  # take would first copy such an array as a whole

        return copy


def _array(name: str, field: str, values: object) -> np.ndarray:
    try:
        return host_array(values)
    except ValueError as error:  # a list of samples that differ in shape, memory of a device, ...
        raise DataError(f"{name}: field {field!r} is not an array: {error}") from error


def _mapped(array: object) -> bool:
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return isinstance(array, mmap.mmap)


_decoded: weakref.WeakValueDictionary[Hashable, ArraySamples] = weakref.WeakValueDictionary()
_decoding = process_lock()


def decoded_once(key: Hashable, decode: Callable[[], ArraySamples]) -> ArraySamples:
    """Return the samples under ``key``; ``decode`` is called unless a source still holds them.

    Workers that open the same file at once wait for a single decoding. Nothing is kept that no source or
    stream uses.
    """
    with _decoding:
        samples = _decoded.get(key)
        if samples is None:
            samples = _decoded[key] = decode()
            for array in samples.columns.values():
                array.flags.writeable = False
        return samples
