"""Blobs as a user's layer sees them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np


class LayerBlob:
    """Values and gradients of the same shape, in arrays of the blob's own until a plan's
    arrays replace them."""

    def __init__(self, shape: Sequence[int] = (), dtype: str = "float32") -> None:
        self._dtype = dtype
        self._data = self._diff = np.zeros(0, dtype)
        self.reshape(*shape)
        self.given = False
        """Whether the blob was given a shape, by ``reshape`` or as a bottom in place."""

    def reshape(self, *shape: int) -> None:
        """Give the blob a shape; arrays of that shape are kept. Raise ValueError for
        an invalid shape."""
        wanted = tuple(int(extent) for extent in shape)
        if any(extent < 0 for extent in wanted):
            raise ValueError(f"{wanted} is not a shape of a blob")
        self.given = True
        if self._data.shape != wanted:
            self._data, self._diff = np.zeros(wanted, self._dtype), np.zeros(wanted, self._dtype)

    def place(self, data: np.ndarray, diff: np.ndarray | None = None) -> None:
        """Use these arrays for the values and, unless None, for the gradients."""
        self._data = data
        if diff is not None:
            self._diff = diff

    @property
    def data(self) -> np.ndarray:
        """The values; write to them in place, as in ``data[...] = x``."""
        return self._data

    @data.setter
    def data(self, value: object) -> None:
        _refuse(value, self._data, "data")

    @property
    def diff(self) -> np.ndarray:
        """The gradients; write to them in place, as in ``diff[...] = x``."""
        return self._diff

    @diff.setter
    def diff(self, value: object) -> None:
        _refuse(value, self._diff, "diff")

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of all axes."""
        return self.data.shape

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def num(self) -> int:
        """The extent of axis 0, or 1 if there is no such axis."""
        return self._extent(0)

    @property
    def channels(self) -> int:
        """The extent of axis 1, or 1 if there is no such axis."""
        return self._extent(1)

    @property
    def height(self) -> int:
        """The extent of axis 2, or 1 if there is no such axis."""
        return self._extent(2)

    @property
    def width(self) -> int:
        """The extent of axis 3, or 1 if there is no such axis."""
        return self._extent(3)

    def _extent(self, axis: int) -> int:
        return self.shape[axis] if axis < len(self.shape) else 1


def _refuse(value: object, mine: np.ndarray, name: str) -> None:
    """Raise AttributeError, as Caffe does, unless ``value`` is the same array, as after ``diff += x``.
    Nothing would ever read another array."""
    if value is not mine:
        raise AttributeError(f"a blob's {name} cannot be replaced; write to it: {name}[...] = x")


class ParameterBlobs:
    """The parameters that a layer adds in ``setup``."""

    def __init__(self, dtype: str) -> None:
        self._dtype, self._blobs = dtype, list[LayerBlob]()

    def add_blob(self, *shape: int) -> LayerBlob:
        """Add a parameter of zeros. Training starts from whatever ``setup`` writes to its data."""
        self._blobs.append(LayerBlob(shape, self._dtype))
        return self._blobs[-1]

    def __getitem__(self, index: int) -> LayerBlob:
        return self._blobs[index]

    def __len__(self) -> int:
        return len(self._blobs)

    def __iter__(self) -> Iterator[LayerBlob]:
        return iter(self._blobs)
