"""A made-up device's memory: its arrays are no NumPy arrays, and tell nobody their elements but by
``np.asarray``; its kernels are the reference's, which alone see what is inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from demitasse import Candidate, Request
from demitasse_reference import plugin as reference


class Remote:
    """An array of the device."""

    def __init__(self, inside: np.ndarray) -> None:
        self.inside = inside
        self.shape, self.dtype, self.size = inside.shape, inside.dtype, inside.size
        self.nbytes = inside.nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        assert copy is not False, "a host has no view of a device's memory"
        return np.array(self.inside, dtype)

    def __getitem__(self, part: slice) -> Self:
        return type(self)(self.inside[part])

    def __setitem__(self, part: Any, value: Any) -> None:
        self.inside[part] = np.asarray(value)

    def copy(self) -> Self:
        return type(self)(self.inside.copy())

    def __iadd__(self, other: Self) -> Self:
        self.inside += other.inside
        return self

    def view(self, dtype: Any) -> Self:
        return type(self)(self.inside.view(dtype))

    def reshape(self, *shape: Any) -> Self:
        return type(self)(self.inside.reshape(*shape))

    def sum(self) -> float:
        return float(self.inside.sum())


class Block:
    """Memory whose views are arrays of a ``kind``."""

    def __init__(self, nbytes: int, kind: type[Remote]) -> None:
        self.nbytes, self._kind, self._bytes = nbytes, kind, np.zeros(nbytes, np.uint8)

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Remote:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self._kind(self._bytes[offset : offset + size].view(dtype).reshape(tuple(shape)))

    def close(self) -> None:
        """Nothing else holds it."""


class Giver:
    """The allocator of one device."""

    def __init__(self, space: str, kind: type[Remote] = Remote) -> None:
        self.space, self.allocations, self.bytes, self._kind = space, 0, 0, kind

    def allocate(self, nbytes: int) -> Block:
        return Block(nbytes, self._kind)


def kernels_inside(request: Request) -> list[Candidate]:
    """The reference's kernels, for arrays of the device."""
    host = replace(request, place=replace(request.place, space="host"))
    return [replace(each, bind=_inside(each.bind)) for each in reference.kernels(request=host)]


def _inside(bind: Callable[..., Any]) -> Callable[..., Any]:
    def bound(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Any:
        def reach(array: Any) -> Any:
            assert array is None or isinstance(array, Remote), "memory that the device cannot reach"
            return array.inside if array is not None else None

        return bind([*map(reach, inputs)], [*map(reach, outputs)], reach(workspace))

    return bound
