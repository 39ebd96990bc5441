"""Interpolation between the places of a plane, at the corners of the cells of regions. He et al. 2017,
*Mask R-CNN*, section 3, *RoIAlign*, as in Cascade R-CNN's and MS-CNN's forks: a pooling layer after it
takes the mean of each cell's four corners. Cai and Vasconcelos 2018, *Cascade R-CNN*."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse_detection.boxes import Reals
from demitasse_detection.regions import checked

Corners = list[tuple[Reals, NDArray[np.int64]]]
"""Four pairs of weights (R, I, J) and places (R, I, J) in planes: the neighbours of each point."""


def aligned(x: Any, regions: Any, about: Mapping[str, Any]) -> Reals:
    """Return y (R, C, I, J): x (N, C, H, W), interpolated linearly at the points of each region; 0 at
    points beyond the plane and for a region without extent."""
    samples, corners = _points(regions, x.shape, about)
    places = np.moveaxis(np.asarray(x, np.float64), 1, -1).reshape(x.shape[0], -1, x.shape[1])
    made = sum(weight[..., None] * places[samples, at] for weight, at in corners)
    return np.moveaxis(np.asarray(made), -1, 1)


def aligned_backward(dy: Any, regions: Any, shape: tuple[int, ...], about: Mapping[str, Any]) -> Reals:
    """Return the gradient of x, of that ``shape``: each dy is divided among the places that
    it was made from."""
    samples, corners = _points(regions, shape, about)
    count, channels, plane = shape[0], shape[1], shape[2] * shape[3]
    each = np.moveaxis(np.asarray(dy, np.float64), 1, -1)
    dx = np.zeros(count * plane * channels)
    for weight, at in corners:
        first = (samples * plane + at)[..., None] * channels
        where = (first + np.arange(channels)).reshape(-1)
        dx += np.bincount(where, (weight[..., None] * each).reshape(-1), dx.size)
    made: Reals = np.moveaxis(dx.reshape(count, *shape[2:], channels), -1, 1)
    return made


def _points(
    regions: Any, shape: tuple[int, ...], about: Mapping[str, Any]
) -> tuple[NDArray[np.int64], Corners]:
    """Return the samples (R, 1, 1) of regions, and the neighbours of each of their points. Raise
    DataError for an invalid region."""
    rows = checked(regions, shape[0], about).astype(np.float64)
    low, high = rows[:, 1:3], rows[:, 3:5]  # x, y
    grown = (high - low + 1) * about["grown"]
    begin, end = (low - grown) * about["scale"] - 0.5, (high + grown) * about["scale"] - 0.5
    there = (end > begin).all(1)[:, None]
    lines = []
    for axis, extent in ((1, shape[2]), (0, shape[3])):
        cells = about["size"][1 - axis]
        at = begin[:, axis, None] + np.arange(cells + 1) * (end - begin)[:, axis, None] / cells
        inside = there & (at >= -0.5) & (at <= extent - 0.5)
        before = np.floor(at)
        share = at.clip(0, extent - 1) - before.clip(0, extent - 1)
        places = [(before + more).clip(0, extent - 1).astype(np.int64) for more in (0, 1)]
        lines.append([(inside * (1 - share), places[0]), (inside * share, places[1])])
    corners = [
        (tall[:, :, None] * wide[:, None], row[:, :, None] * shape[3] + column[:, None])
        for tall, row in lines[0]
        for wide, column in lines[1]
    ]
    return rows[:, 0].astype(np.int64)[:, None, None], corners
