"""Means over the cells of regions of images, with separate channels for each cell. Dai et al. 2016,
*R-FCN*, section 2, *Position-sensitive score maps & Position-sensitive RoI pooling*."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse import DataError
from demitasse_detection.boxes import Reals

Corners = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
_THINNEST = np.float32(0.1)
"""The minimum extent of a region in places."""


def pooled(x: Any, regions: Any, about: Mapping[str, Any]) -> Reals:
    """Return y (R, D, size, size): y[r, d, i, j] is the mean over cell (i, j) of region r of channel (d
    * size + i) * size + j of x (N, D size^2, H, W), or 0 if the cell contains no place of the plane."""
    samples, planes, cells = _cells(regions, x.shape, about)
    sums = np.zeros((*x.shape[:2], x.shape[2] + 1, x.shape[3] + 1))
    sums[:, :, 1:, 1:] = np.asarray(x, np.float64).cumsum(2).cumsum(3)  # of all places above and left
    whole: Reals = np.zeros((len(samples), *planes.shape[1:]))
    for sign, row, column in _corners(cells):
        whole += sign * sums[samples, planes, row, column]
    return whole / _areas(cells)


def pooled_backward(dy: Any, regions: Any, shape: tuple[int, ...], about: Mapping[str, Any]) -> Reals:
    """Return the gradient of x, of that ``shape``: each dy is spread evenly over its cell."""
    samples, planes, cells = _cells(regions, shape, about)
    each = np.asarray(dy, np.float64) / _areas(cells)
    steps = np.zeros((*shape[:2], shape[2] + 1, shape[3] + 1))  # its cumulative sums are dx
    for sign, row, column in _corners(cells):
        np.add.at(steps, (samples, planes, row, column), sign * each)
    dx: Reals = steps.cumsum(2).cumsum(3)[:, :, :-1, :-1]
    return dx


def _cells(
    regions: Any, shape: tuple[int, ...], about: Mapping[str, Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], Corners]:
    """Return samples (R, 1, 1, 1), channels (1, D, size, size), and the first and last rows and columns
    of cells (R, 1, size, size), with the authors' arithmetic. Raise DataError for an invalid region."""
    size, rows = about["size"], checked(regions, shape[0], about)
    nearest = np.copysign(np.floor(np.abs(rows[:, 1:]) + np.float32(0.5)), rows[:, 1:])
    scale, index = np.float32(about["scale"]), np.arange(size, dtype=np.float32)
    begin, end = nearest[:, :2] * scale, (nearest[:, 2:] + 1) * scale
    step = np.maximum(end - begin, _THINNEST) / np.float32(size)
    low = np.floor(index * step[..., None] + begin[..., None])  # (R, 2, size): columns, rows
    high = np.ceil((index + 1) * step[..., None] + begin[..., None])
    left, right = (each[:, 0, None, None, :].clip(0, shape[3]) for each in (low, high))
    top, bottom = (each[:, 1, None, :, None].clip(0, shape[2]) for each in (low, high))
    planes = np.arange(shape[1]).reshape(1, -1, size, size)
    cells = tuple(
        each.astype(np.int64) for each in (top, np.maximum(top, bottom), left, np.maximum(left, right))
    )
    return rows[:, 0].astype(np.int64)[:, None, None, None], planes, cells


def checked(regions: Any, samples: int, about: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return regions (R, 5): the number of a sample and two corners. Raise DataError for
    an invalid region."""
    rows = np.asarray(regions, np.float32).reshape(-1, 5)
    valid = np.isin(rows[:, 0], np.arange(samples)) & (np.abs(rows[:, 1:]) < 2**24).all(1)
    if not valid.all():
        r = int(valid.argmin())
        told = " ".join(f"{number:g}" for number in rows[r])
        raise DataError(
            f"{about['source']}: region {r} is {told} (valid: a sample from 0 to {samples - 1}, and "
            f"corners below 2^24)"
        )
    return rows


def _corners(cells: Corners) -> tuple[tuple[int, NDArray[np.int64], NDArray[np.int64]], ...]:
    """Return the places where cumulative sums are added and subtracted to get the sum of a cell."""
    top, bottom, left, right = cells
    return (1, bottom, right), (-1, top, right), (-1, bottom, left), (1, top, left)


def _areas(cells: Corners) -> NDArray[np.int64]:
    """Return the number of places in each cell, 1 for an empty one."""
    top, bottom, left, right = cells
    found: NDArray[np.int64] = np.maximum((bottom - top) * (right - left), 1)
    return found
