"""Images warped by a flow: each pixel is taken from where the flow points.

Ilg et al. 2017, *FlowNet 2.0: Evolution of Optical Flow Estimation with Deep Networks*, section 4; Sun
et al. 2018, *PWC-Net*, section 3. Positions are computed in the tensors' own type, everything else in
float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class _Along:
    """One coordinate of the place that each pixel is taken from: the pixels on both sides, the distance
    to the first of them, and whether the place is inside the image. Each is samples x rows x columns."""

    low: Whole
    high: Whole
    share: Reals
    inside: NDArray[np.bool_]


def _along(flow: Any, axis: int, to_corners: bool) -> _Along:
    """Compute the coordinate; ``axis`` is 0 for rows, 1 for columns."""
    extent = flow.shape[2 + axis]
    shape = (-1, 1) if axis == 0 else (1, -1)
    at = np.arange(extent, dtype=flow.dtype).reshape(shape) + flow[:, 1 - axis]
    inside = (at >= 0) & ((at <= extent - 1) if to_corners else (at < extent))
    known = np.where(inside, at, 0).astype(np.float64)
    low = known.astype(np.int64)
    share = known - low
    high = np.minimum(low + ((share > 0) if to_corners else 1), extent - 1)
    return _Along(low, high, share, inside)


class Warped:
    """The places that the pixels of images are taken from, according to a flow."""

    def __init__(self, x: Any, flow: Any, about: Mapping[str, Any]) -> None:
        self._x = np.asarray(x, np.float64)
        self._corners, self._fill = about["to_corners"], about["fill"]
        self._rows = _along(flow, 0, self._corners)
        self._columns = _along(flow, 1, self._corners)
        self._inside = (self._rows.inside & self._columns.inside)[:, None]

    def _corner(self, rows: Whole, columns: Whole) -> Reals:
        """Return the pixels of x at rows and columns, in the shape of x."""
        samples = np.arange(len(self._x))[:, None, None]
        return np.moveaxis(self._x[samples, :, rows, columns], -1, 1)

    def image(self) -> Reals:
        """Return y, in the shape of x."""
        r, c = self._rows, self._columns
        b, a = r.share[:, None], c.share[:, None]
        upper = (1 - a) * self._corner(r.low, c.low) + a * self._corner(r.low, c.high)
        lower = (1 - a) * self._corner(r.high, c.low) + a * self._corner(r.high, c.high)
        return np.where(self._inside, (1 - b) * upper + b * lower, self._fill)

    def to_image(self, dy: Any) -> Reals:
        """Return dx: each dy is divided among the four pixels that it comes from."""
        r, c = self._rows, self._columns
        given = np.where(self._inside, dy, 0.0)
        made = np.zeros_like(self._x)
        samples = np.arange(len(made))[:, None, None, None]
        channels = np.arange(made.shape[1])[:, None, None]
        for rows, down in ((r.low, 1 - r.share), (r.high, r.share)):
            for columns, across in ((c.low, 1 - c.share), (c.high, c.share)):
                place = (samples, channels, rows[:, None], columns[:, None])
                np.add.at(made, place, given * (down * across)[:, None])
        return made

    def to_flow(self, dy: Any) -> Reals:
        """Return dflow: dy times the slopes of x at the place that it comes from,
        summed over channels."""
        r, c = self._rows, self._columns
        given = np.where(self._inside, dy, 0.0)
        b, a = r.share[:, None], c.share[:, None]
        across = (1 - b) * self._across(r.low) + b * self._across(r.high)
        down = (1 - a) * self._down(c.low) + a * self._down(c.high)
        return np.stack([(given * across).sum(1), (given * down).sum(1)], 1)

    def _across(self, rows: Whole) -> Reals:
        """Return slopes along rows."""
        c, last = self._columns, self._x.shape[3] - 1
        slope = self._corner(rows, c.high) - self._corner(rows, c.low)
        if self._corners:
            before, behind = np.maximum(c.low - 1, 0), np.minimum(c.low + 1, last)
            both = self._corner(rows, behind) - self._corner(rows, before)
            slope = np.where(c.share[:, None] > 0, slope, both / 2)
        return slope

    def _down(self, columns: Whole) -> Reals:
        """Return slopes along columns."""
        r, last = self._rows, self._x.shape[2] - 1
        slope = self._corner(r.high, columns) - self._corner(r.low, columns)
        if self._corners:
            before, behind = np.maximum(r.low - 1, 0), np.minimum(r.low + 1, last)
            both = self._corner(behind, columns) - self._corner(before, columns)
            slope = np.where(r.share[:, None] > 0, slope, both / 2)
        return slope
