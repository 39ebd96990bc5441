"""Maxima over the cells of regions of images, plane by plane."""

from __future__ import annotations

import math

import numpy as np

from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.native import WrongError


@compiled()
def first_wrong(regions: Array, samples: int, wrong: Array) -> None:
    """Raise WrongError if there is an invalid region, with its number in ``wrong``."""
    for r in range(regions.size // 5):
        row = regions[5 * r : 5 * r + 5]
        known = row[0] >= 0 and row[0] < samples and math.floor(row[0]) == row[0]
        for i in range(1, 5):
            known = known and abs(row[i]) < 2**24
        if not known:
            wrong[0] = r
            raise WrongError


@compiled()
def _place(corner: float, scale: float) -> int:
    """Return the place of a corner, with halves rounded away from 0."""
    scaled = float(np.float32(corner) * np.float32(scale))
    nearest = math.floor(abs(scaled) + 0.5)
    return int(nearest) if scaled >= 0 else -int(nearest)


@compiled()
def _bound(begin: int, end: int, cell: int, step: np.float32, extent: int) -> int:
    """Return where a cell begins (``end`` 0) or ends (1) along one side of a plane."""
    at = np.float32(cell + end) * step
    place = begin + int(math.ceil(at) if end else math.floor(at))
    return min(max(place, 0), extent)


@compiled()
def pooled(
    x: Array,
    regions: Array,
    y: Array,
    place: Array,
    channels: int,
    height: int,
    width: int,
    rows: int,
    columns: int,
    scale: float,
    begin: int,
    end: int,
) -> None:
    """Pool regions times channels ``begin`` to ``end``. Skip invalid regions, which ``first_wrong``
    reports. ``place`` is empty if nobody reads it."""
    plane, cells = height * width, rows * columns
    samples = x.size // (channels * plane)
    for unit in range(begin, end):
        region = regions[5 * (unit // channels) : 5 * (unit // channels) + 5]
        if not (region[0] >= 0 and region[0] < samples):
            continue
        at = int(region[0]) * channels + unit % channels
        given, result = x[at * plane : (at + 1) * plane], y[unit * cells : (unit + 1) * cells]
        left, top = _place(region[1], scale), _place(region[2], scale)
        right, bottom = _place(region[3], scale), _place(region[4], scale)
        down = np.float32(max(bottom - top + 1, 1)) / np.float32(rows)
        across = np.float32(max(right - left + 1, 1)) / np.float32(columns)
        for i in range(rows):
            low, high = _bound(top, 0, i, down, height), _bound(top, 1, i, down, height)
            for j in range(columns):
                first, last = _bound(left, 0, j, across, width), _bound(left, 1, j, across, width)
                best = -1
                for row in range(low, high):
                    for column in range(row * width + first, row * width + last):
                        if best < 0 or given[column] > given[best]:
                            best = column
                result[i * columns + j] = given[best] if best >= 0 else 0
                if place.size:
                    place[unit * cells + i * columns + j] = best


@compiled()
def spread_back(
    dy: Array,
    regions: Array,
    place: Array,
    dx: Array,
    channels: int,
    plane: int,
    cells: int,
    begin: int,
    end: int,
) -> None:
    """Compute planes ``begin`` to ``end`` of dx, each summed in the order of the regions whichever
    thread does it."""
    for at in range(begin, end):
        result = dx[at * plane : (at + 1) * plane]
        result[:] = 0
        for r in range(regions.size // 5):
            if regions[5 * r] == at // channels:
                unit = r * channels + at % channels
                for cell in range(unit * cells, (unit + 1) * cells):
                    if place[cell] >= 0:
                        result[place[cell]] += dy[cell]
