"""Decoded samples: what every kind of source ends up as, and those that stand in arrays."""

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
    """Put ``what`` before the message of a DataError."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{what}: {error}") from error


class Samples(Protocol):
    """Samples by their number in the file (from 0), of which some can be fetched at once."""

    name: str
    fields: Mapping[str, Field]
    size: int

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        """Write the samples with these numbers into ``out``: for every field an array of stored type.
        ``first`` is the first one's number in the endless global order, the others' follow: what is
        drawn at random for a sample is drawn by it. Raises DataError, or whatever a reader meets, when
        one cannot be read."""


@runtime_checkable
class OwnShapes(Samples, Protocol):
    """Samples of which each may have a shape of its own; ``fields`` have the first one's."""

    varies: bool
    """Whether they are such."""

    def sample(self, number: int, place: int) -> dict[str, np.ndarray]:
        """A sample by its number in the file, whose number in the endless global order is ``place``, as
        large as it is: its fields, without an axis for the batch. Raises as ``gather`` does."""

    def where(self, number: int) -> str:
        """Where a sample is from, for messages."""


class ArraySamples:
    """Fields that stand in arrays, one row a sample. The arrays are used, not copied. ``absent`` tells
    why fields are not there that samples of this kind have; ``files`` are those that arrays are maps of.

    Raises DataError when they are not numbers, have no samples, or differ in length.
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
        """Whether some of it lies in files, which are read when it is touched."""
        return any(_mapped(array) for array in self.columns.values())

    def gather(self, numbers: np.ndarray, out: Mapping[str, np.ndarray], first: int) -> None:
        for file in self._files:
            file.check()
        for field, array in out.items():
            self.into(field, array)(numbers)

    def into(self, field: str, out: np.ndarray) -> Callable[[np.ndarray], object]:
        """What writes the samples of given numbers into ``out``, of the field's stored type."""
        array = self.columns[field]
        flags = array.flags
        if flags.c_contiguous and flags.aligned and array.dtype.isnative:
            # With mode="raise", take would go through a buffer of its own.
            return partial(array.take, axis=0, out=out, mode="clip")

        def copy(numbers: np.ndarray) -> None:
            out[...] = array[numbers]  # take would first copy the whole of such an array

        return copy


def _array(name: str, field: str, values: object) -> np.ndarray:
    try:
        return host_array(values)
    except ValueError as error:  # a list of samples of several shapes, memory of a device, ...
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
    """The samples under ``key``, decoded unless a source still holds them.

    Workers that open one file at once wait for a single decoding. Nothing is kept that no source
    or stream uses.
    """
    with _decoding:
        samples = _decoded.get(key)
        if samples is None:
            samples = _decoded[key] = decode()
            for array in samples.columns.values():
                array.flags.writeable = False
        return samples
