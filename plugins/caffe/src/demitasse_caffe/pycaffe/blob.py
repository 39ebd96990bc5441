"""Blobs as scripts see them: live arrays of values and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from demitasse import ShapeError


class BlobOwner(Protocol):
    """The owner of a net's arrays."""

    def blob_data(self, name: str) -> np.ndarray:
        """Return the live values of a blob."""

    def blob_diff(self, name: str) -> np.ndarray:
        """Return the live gradient of a blob."""

    def reshape_blob(self, name: str, shape: tuple[int, ...]) -> None:
        """Give an input a new shape."""


class Blob:
    """Values (``data``) and gradients (``diff``) of the same shape."""

    @property
    def data(self) -> np.ndarray:
        """The live values."""
        raise NotImplementedError

    @property
    def diff(self) -> np.ndarray:
        """The live gradients."""
        raise NotImplementedError

    def reshape(self, *shape: int) -> None:
        """Give the blob a new shape."""
        raise NotImplementedError

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
        if len(self.shape) > 4:
            raise ShapeError(
                f"num, channels, height and width are for blobs of up to 4 axes; this has {self.shape}"
            )
        return self.shape[axis] if axis < len(self.shape) else 1

    def __repr__(self) -> str:
        return f"<blob {'x'.join(map(str, self.shape)) or 'scalar'}>"


class BlobVec(list[Blob]):
    """A list of blobs in order; Caffe's name for the type that holds a layer's parameters. A blob that
    is assigned to an index gives its shape and values to the blob there; in Caffe the two would also
    share their memory from then on."""

    def __setitem__(self, index: Any, blob: Any) -> None:
        mine = self[index]
        if not isinstance(blob, Blob) or not isinstance(mine, Blob):
            given = type(blob).__name__
            raise TypeError(f"blobs take a blob, not {given}; write values to blobs[{index}].data[...]")
        if blob is not mine:
            mine.reshape(*blob.shape)
            mine.data[...] = blob.data


class NetBlob(Blob):
    """A blob between layers. Only inputs can be reshaped; the rest of the net follows at the next
    forward pass."""

    def __init__(self, owner: BlobOwner, name: str) -> None:
        self._owner, self._name = owner, name

    @property
    def data(self) -> np.ndarray:
        return self._owner.blob_data(self._name)

    @property
    def diff(self) -> np.ndarray:
        return self._owner.blob_diff(self._name)

    def reshape(self, *shape: int) -> None:
        if any(extent < 1 for extent in shape):
            raise ShapeError(f"blob {self._name!r}: {shape} is not a shape: extents must be 1 or more")
        self._owner.reshape_blob(self._name, tuple(int(extent) for extent in shape))


class ParameterBlob(Blob):
    """A parameter of a layer. If it is given another shape than the layer's own, it gets separate
    arrays, so that the net can be saved with them; ``reshaped`` is then true."""

    def __init__(
        self, where: str, data: Callable[[], np.ndarray], diff: Callable[[], np.ndarray]
    ) -> None:
        self.where, self._data, self._diff = where, data, diff
        self._own: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def reshaped(self) -> bool:
        """Whether the shape differs from the layer's own, so that the layer cannot use the blob."""
        return self._own is not None

    @property
    def data(self) -> np.ndarray:
        return self._data() if self._own is None else self._own[0]

    @property
    def diff(self) -> np.ndarray:
        return self._diff() if self._own is None else self._own[1]

    def reshape(self, *shape: int) -> None:
        """Give the blob a new shape. It keeps as many of its numbers as fit, in their order."""
        wanted, before = tuple(int(extent) for extent in shape), self.data
        if wanted == before.shape:
            return
        if any(extent < 1 for extent in wanted):
            raise ShapeError(f"{self.where}: {wanted} is not a shape: extents must be 1 or more")
        if wanted == self._data().shape:
            self._own = None
        else:
            self._own = np.zeros(wanted, before.dtype), np.zeros(wanted, before.dtype)
        kept = min(before.size, self.data.size)
        self.data.flat[:kept] = before.flat[:kept]
