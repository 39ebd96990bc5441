"""Parts and copies of tensors: cropped boxes, tiles, rows by index, selected rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from demitasse import DataError
from demitasse_reference.kernels.arrays import Extents, Index, Kernels, Reals, Values


def crop(x: Reals, *, offset: Extents, extent: Extents) -> Reals:
    return x[_box(offset, extent)]


def crop_backward(dy: Reals, *, offset: Extents, shape: Extents) -> Reals:
    dx = np.zeros(shape)
    dx[_box(offset, dy.shape)] = dy
    return dx


def cut(x: Reals, *, axis: int, shapes: Sequence[Extents]) -> tuple[Reals, ...]:
    return tuple(np.split(x, np.cumsum([shape[axis] for shape in shapes])[:-1], axis))


def tile(x: Reals, *, axis: int, tiles: int) -> Reals:
    return np.concatenate([x] * tiles, axis)


def tile_backward(dy: Reals, *, axis: int, tiles: int) -> Reals:
    dx: Reals = np.sum(np.split(dy, tiles, axis), axis=0)
    return dx


def gather(x: Reals, index: Values, *, source: str) -> Reals:
    wrong = ~((index >= 0) & (index < len(x)) & (index == np.floor(index)))
    if wrong.any():
        place = int(wrong.ravel().argmax())
        raise DataError(
            f"{source}: index {index.ravel()[place]:g} at place {place} is not a row "
            f"(valid: whole numbers from 0 to {len(x) - 1})"
        )
    return x[index.astype(np.int64)]


def gather_backward(dy: Reals, index: Values, *, shape: Extents) -> Reals:
    dx = np.zeros(shape)
    np.add.at(dx, index.astype(np.int64).ravel(), dy.reshape(-1, *shape[1:]))
    return dx


def compress(x: Reals, selector: Values) -> tuple[Reals, int]:
    kept = x[selector.ravel() != 0]
    y = np.zeros(x.shape)
    y[: len(kept)] = kept
    return y, len(kept)


def compress_backward(dy: Reals, selector: Values) -> Reals:
    selected = selector.ravel() != 0
    dx = np.zeros(dy.shape)
    dx[selected] = dy[: selected.sum()]
    return dx


def _box(offset: Extents, extent: Extents) -> Index:
    return tuple(slice(start, start + size) for start, size in zip(offset, extent, strict=True))


KERNELS: Kernels = {
    "crop": crop,
    "crop_backward": crop_backward,
    "slice": cut,
    "tile": tile,
    "tile_backward": tile_backward,
    "gather": gather,
    "gather_backward": gather_backward,
    "compress": compress,
    "compress_backward": compress_backward,
}
