"""Maxima over the cells of regions of images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from demitasse import DataError
from demitasse_reference.kernels.arrays import Extents, Kernels, Reals, Values


def pooling_regions(
    x: Reals, regions: Values, *, size: Extents, scale: float, source: str
) -> tuple[Reals, Values]:
    rows = regions.reshape(len(regions), 5)
    samples, channels, _, width = x.shape
    y = np.zeros((len(rows), channels, *size))
    place = np.full(y.shape, -1, np.int64)
    for r, region in enumerate(rows):
        known = region[0] in range(samples) and (np.abs(region[1:]) < 2**24).all()
        if not known:
            told = " ".join(f"{number:g}" for number in region)
            raise DataError(
                f"{source}: region {r} is {told} (valid: a sample from 0 to {samples - 1}, and corners "
                f"below 2^24)"
            )
        for i, (top, bottom) in enumerate(_spans(region[2], region[4], scale, size[0], x.shape[2])):
            for j, (left, right) in enumerate(_spans(region[1], region[3], scale, size[1], width)):
                cell = x[int(region[0]), :, top:bottom, left:right].reshape(channels, -1)
                if cell.size:
                    first = cell.argmax(1)
                    y[r, :, i, j] = cell[np.arange(channels), first]
                    row, column = np.divmod(first, right - left)
                    place[r, :, i, j] = (top + row) * width + left + column
    return y, place


def _spans(
    first: float, last: float, scale: float, cells: int, extent: int
) -> Iterator[tuple[int, int]]:
    """Yield where each cell along one side begins and ends."""
    begin, end = (_rounded(np.float32(corner) * np.float32(scale)) for corner in (first, last))
    step = np.float32(max(end - begin + 1, 1)) / np.float32(cells)
    for cell in range(cells):
        low = begin + int(np.floor(np.float32(cell) * step))
        high = begin + int(np.ceil(np.float32(cell + 1) * step))
        yield min(max(low, 0), extent), min(max(high, 0), extent)


def _rounded(number: np.float32) -> int:
    """Return the nearest whole number; halves are rounded away from 0."""
    return int(np.copysign(np.floor(abs(float(number)) + 0.5), number))


def pooling_regions_backward(dy: Reals, regions: Values, place: Values, *, shape: Extents) -> Reals:
    samples, channels, height, width = shape
    dx = np.zeros((samples, channels, height * width))
    for r, sample in enumerate(regions.reshape(len(regions), 5)[:, 0].astype(np.int64)):
        for channel in range(channels):
            there = place[r, channel].ravel()
            np.add.at(dx[sample, channel], there[there >= 0], dy[r, channel].ravel()[there >= 0])
    return dx.reshape(shape)


KERNELS: Kernels = {
    "pooling_regions": pooling_regions,
    "pooling_regions_backward": pooling_regions_backward,
}
